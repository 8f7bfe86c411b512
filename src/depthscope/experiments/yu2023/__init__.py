"""Yu & Zhang 2023 (arXiv 2312.06182): Why classic Transformers are shallow and how to make them go deep."""
