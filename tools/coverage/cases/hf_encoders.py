"""Text encoders of transformers."""

from tools.coverage.hugging_face import encoder, padded

encoder("bert", "BertModel")
encoder("bert eager", "BertModel", attn_implementation="eager")
encoder("albert", "AlbertModel", "encoder.albert_layer_groups.*", embedding_size=32)
encoder("roberta", "RobertaModel", pad_token_id=1)
encoder("xlm-roberta", "XLMRobertaModel", pad_token_id=1)
encoder("camembert", "CamembertModel", pad_token_id=1)
encoder("roberta-prelayernorm", "RobertaPreLayerNormModel", pad_token_id=1)
encoder("electra", "ElectraModel", embedding_size=32)
encoder("distilbert", "DistilBertModel", "transformer.layer.*", dim=64, hidden_dim=128, n_layers=5, n_heads=4)
encoder("deberta", "DebertaModel", relative_attention=True, pos_att_type=["c2p", "p2c"])
encoder("deberta-v2", "DebertaV2Model", relative_attention=True, pos_att_type=["c2p", "p2c"])
encoder(
    "xlnet", "XLNetModel", "layer.*", d_model=64, n_layer=5, n_head=4, d_inner=128, max_position_embeddings=None,
    hooks={"layout": "n b d"},
)  # fmt: skip
encoder("mpnet", "MPNetModel", pad_token_id=1)
encoder("megatron-bert", "MegatronBertModel")
encoder("ernie", "ErnieModel")
encoder("rembert", "RemBertModel", input_embedding_size=32)
encoder("roc-bert", "RoCBertModel", pronunciation_vocab_size=100, shape_vocab_size=100)
encoder("esm", "EsmModel", pad_token_id=1, mask_token_id=3, position_embedding_type="rotary")
encoder("roformer", "RoFormerModel", embedding_size=64)
encoder("nystromformer", "NystromformerModel", heads=False, num_landmarks=4, segment_means_seq_len=24)
encoder("yoso", "YosoModel", heads=False, use_expectation=True)
encoder("big-bird full", "BigBirdModel", attention_type="original_full")
encoder(
    "big-bird sparse", "BigBirdModel", attention_type="block_sparse", block_size=2, num_random_blocks=1, heads=False
)
encoder("longformer", "LongformerModel", heads=False, attention_window=8)
encoder("convbert", "ConvBertModel", heads=False, embedding_size=64, head_ratio=2, num_groups=1)
encoder(
    "squeezebert", "SqueezeBertModel", "encoder.layers.*.output", embedding_size=64, heads=False,
    hooks={"layout": "b d n", "first": "encoder.layers.0.attention"},
)  # fmt: skip
encoder("mobilebert", "MobileBertModel", embedding_size=32, intra_bottleneck_size=32, heads=True)
encoder("ibert", "IBertModel", pad_token_id=1, heads=False)
encoder("fnet", "FNetModel", heads=False)
encoder("canine", "CanineModel", "encoder.layer.*", heads=False, local_transformer_stride=4, downsampling_rate=4)
encoder("modernbert", "ModernBertModel", "layers.*", local_attention=8, cls_token_id=1, sep_token_id=2)
encoder("nomic-bert", "NomicBertModel", "layers.*")
encoder("eurobert", "EuroBertModel", "layers.*", num_key_value_heads=2)
encoder("jina-embeddings-v3", "JinaEmbeddingsV3Model", "layers.*")
encoder("luke", "LukeModel", pad_token_id=1, entity_vocab_size=50, entity_emb_size=32)
encoder("layoutlm", "LayoutLMModel")
encoder("splinter", "SplinterModel")
encoder(
    "funnel base", "FunnelBaseModel", "encoder.blocks.*.*", heads=False, base={}, token_axis=None, vocab_size=100,
    d_model=64, n_head=4, d_head=16, d_inner=128, block_sizes=[2, 2, 2], initializer_range=0.07,
)  # fmt: skip
encoder("bert-generation", "BertGenerationEncoder")
encoder("data2vec-text", "Data2VecTextModel", pad_token_id=1)
encoder("xmod", "XmodModel", pad_token_id=1, default_language="en_XX", languages=["en_XX"])
encoder("tapas", "TapasModel", "encoder.layer.*", type_vocab_sizes=[3, 8, 8, 2, 8, 8, 4])
encoder("gte", "GteModel", "layers.*")

for name, kind in (("xlm", "XLMModel"), ("flaubert", "FlaubertModel")):
    encoder(
        name, kind, "layer_norm2.*", base={}, vocab_size=100, n_words=100, emb_dim=64, n_layers=5, n_heads=4,
        max_position_embeddings=64, init_std=0.07, embed_init_std=0.07, hooks={"first": "attentions.0"},
    )  # fmt: skip

padded("bert padded", "BertModel", "encoder.layer.*")
padded("roberta padded", "RobertaModel", "encoder.layer.*")
padded("distilbert padded", "DistilBertModel", "transformer.layer.*", dim=64, hidden_dim=128, n_layers=5, n_heads=4)
padded("deberta-v2 padded", "DebertaV2Model", "encoder.layer.*", relative_attention=True, pos_att_type=["c2p"])
padded("modernbert padded", "ModernBertModel", "layers.*", local_attention=8)
padded("llama left padded", "LlamaModel", "layers.*", causal=True, left=True)
padded("llama right padded", "LlamaModel", "layers.*", causal=True)
padded("gpt2 left padded", "GPT2Model", "h.*", causal=True, left=True)
padded("mistral left padded", "MistralModel", "layers.*", causal=True, left=True, num_key_value_heads=2)
