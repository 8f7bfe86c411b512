"""Causal language models of transformers."""

from tools.coverage.hugging_face import decoder

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {"q_lora_rank": None, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}

decoder("gpt2", "GPT2Model", "h.*")
decoder("gpt2 eager", "GPT2Model", "h.*", attn_implementation="eager")
decoder("gpt2 lm head", "GPT2LMHeadModel", "transformer.h.*")
decoder("openai-gpt", "OpenAIGPTModel", "h.*")
decoder("gpt-neo", "GPTNeoModel", "h.*", attention_types=[[["global"], 5]])
decoder(
    "gpt-neo local", "GPTNeoModel", "h.*", attention_types=[[["global", "local"], 2], [["global"], 1]], window_size=8
)
decoder("gpt-j", "GPTJModel", "h.*", n_embd=64, n_layer=5, n_head=4, rotary_dim=8)
decoder("codegen", "CodeGenModel", "h.*", n_embd=64, n_layer=5, n_head=4, rotary_dim=8, n_ctx=64)
decoder("gpt-neox", "GPTNeoXModel")
decoder("gpt-neox sequential", "GPTNeoXModel", use_parallel_residual=False)
decoder("gpt-bigcode", "GPTBigCodeModel", "h.*")
decoder("imagegpt", "ImageGPTModel", "h.*", heads=False)
decoder("ctrl", "CTRLModel", "h.*", n_embd=64, n_layer=5, n_head=4, dff=128)
decoder("opt", "OPTModel", "decoder.layers.*", ffn_dim=128, word_embed_proj_dim=64)
decoder(
    "opt post-norm", "OPTModel", "decoder.layers.*", ffn_dim=128, word_embed_proj_dim=64, do_layer_norm_before=False
)
decoder("bloom", "BloomModel", "h.*", n_layer=5, n_head=4)
decoder("falcon", "FalconModel", "h.*")
decoder("falcon alibi", "FalconModel", "h.*", alibi=True, new_decoder_architecture=False, parallel_attn=False)
decoder("mpt", "MptModel", "blocks.*", d_model=64, n_layers=5, n_heads=4, heads=False)
decoder("biogpt", "BioGptModel")
decoder("xglm", "XGLMModel", d_model=64, num_layers=5, attention_heads=4, ffn_dim=128)
decoder("llama", "LlamaModel", num_key_value_heads=2)
decoder("llama eager", "LlamaModel", num_key_value_heads=2, attn_implementation="eager")
decoder("llama lm head", "LlamaForCausalLM", "model.layers.*", num_key_value_heads=2)
decoder("mistral", "MistralModel", num_key_value_heads=2, sliding_window=8)
decoder("mixtral", "MixtralModel", num_key_value_heads=2, num_local_experts=4)
decoder("qwen2", "Qwen2Model", num_key_value_heads=2)
decoder(
    "qwen2-moe", "Qwen2MoeModel", num_key_value_heads=2, num_experts=4, shared_expert_intermediate_size=32, **EXPERTS
)
decoder("qwen3", "Qwen3Model", num_key_value_heads=2, head_dim=16)
decoder("qwen3-moe", "Qwen3MoeModel", num_key_value_heads=2, head_dim=16, num_experts=4, **EXPERTS)
decoder(
    "qwen3-next", "Qwen3NextModel", num_key_value_heads=2, head_dim=16, num_experts=4, heads=False, **EXPERTS,
    shared_expert_intermediate_size=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
    linear_value_head_dim=16,
)  # fmt: skip
decoder("gemma", "GemmaModel", num_key_value_heads=2, head_dim=16)
decoder("gemma2", "Gemma2Model", num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, sliding_window=8)
decoder("gemma3", "Gemma3TextModel", num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, sliding_window=8)
decoder("phi", "PhiModel")
decoder("phi3", "Phi3Model", num_key_value_heads=2)
decoder("phimoe", "PhimoeModel", num_key_value_heads=2, num_local_experts=4)
decoder("stablelm", "StableLmModel", num_key_value_heads=4)
decoder("stablelm parallel", "StableLmModel", num_key_value_heads=4, use_parallel_residual=True)
decoder("cohere", "CohereModel", num_key_value_heads=2)
decoder("cohere2", "Cohere2Model", num_key_value_heads=2, sliding_window=8)
decoder("glm", "GlmModel", num_key_value_heads=2, head_dim=16)
decoder("glm4", "Glm4Model", num_key_value_heads=2, head_dim=16)
decoder("olmo", "OlmoModel")
decoder("olmo2", "Olmo2Model")
decoder("olmo3", "Olmo3Model", sliding_window=8)
decoder("olmoe", "OlmoeModel", num_experts=4, num_experts_per_tok=2)
decoder("nemotron", "NemotronModel", num_key_value_heads=2)
decoder("deepseek-v2", "DeepseekV2Model", n_routed_experts=4, n_group=1, topk_group=1, **LATENT, **EXPERTS)
decoder(
    "deepseek-v3",
    "DeepseekV3Model",
    num_key_value_heads=4,
    n_routed_experts=4,
    n_group=1,
    topk_group=1,
    **LATENT,
    **EXPERTS,
)
decoder(
    "gpt-oss", "GptOssModel", num_key_value_heads=2, head_dim=16, num_local_experts=4, sliding_window=8, heads=False
)
decoder("granite", "GraniteModel", num_key_value_heads=2, residual_multiplier=0.5)
decoder("granitemoe", "GraniteMoeModel", num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2)
decoder("smollm3", "SmolLM3Model", num_key_value_heads=2)
decoder("starcoder2", "Starcoder2Model", num_key_value_heads=2)
decoder("persimmon", "PersimmonModel")
decoder("helium", "HeliumModel", num_key_value_heads=2, head_dim=16)
decoder("ernie4.5", "Ernie4_5Model", num_key_value_heads=2, head_dim=16)
decoder("exaone4", "Exaone4Model", num_key_value_heads=2, sliding_window=8)
decoder("seed-oss", "SeedOssModel", num_key_value_heads=2, head_dim=16)
decoder("arcee", "ArceeModel", num_key_value_heads=2)
decoder("diffllama", "DiffLlamaModel", num_key_value_heads=2, heads=False)
decoder("doge", "DogeModel", num_key_value_heads=2, heads=False)
decoder("bitnet", "BitNetModel", num_key_value_heads=2)
decoder(
    "minicpm3",
    "MiniCPM3Model",
    num_key_value_heads=4,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_rope_head_dim=8,
    qk_nope_head_dim=8,
    v_head_dim=16,
)
decoder("modernbert-decoder", "ModernBertDecoderModel", local_attention=8)
decoder("nanochat", "NanoChatModel", num_key_value_heads=2)
decoder("apertus", "ApertusModel", num_key_value_heads=2)
decoder("jetmoe", "JetMoeModel", num_key_value_heads=2, kv_channels=16, num_local_experts=4, heads=False)
