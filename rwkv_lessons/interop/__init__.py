"""Adapters: the functions of other packages, computed by this one.

    flash_rwkv.py         rwkv5_cuda_linear_attention, rwkv6_cuda_linear_attention of flash-rwkv
    transformers_rwkv.py  rwkv5_linear_attention, rwkv6_linear_attention of the Hugging Face models,
                          and patch_rwkv for a model that is already loaded
    transformers_mla.py   use_latent_mla for MiniCPM3, DeepSeek-V2 and -V3
    rwkv_v3.py            TimeX of RWKV-LM's RWKV-v2 and v3
    fla.py                chunk_rwkv6, fused_recurrent_rwkv6 of flash-linear-attention, those of
                          RWKV-7 (fla_rwkv7.py), and patch_fla for the layers of both; chunk_kda
                          and gated delta nets (fla_kda.py)
    wind_rwkv.py          attn_chunked_cuda and the others of wind_rwkv
    rwkv_lm.py            RWKV7_CLAMPW_CUDA and its like, of RWKV-LM's training code
    rwkv_peft.py          RUN_RWKV7_STATE, RUN_RWKV7_INFCTX of RWKV-PEFT, and states in files
    albatross.py          wkv_seq_w0, forward and the others of Albatross and vLLM-RWKV, RWKV7_OP
    rwkv_sglang.py        wkv_decode, wkv_recurrent of rwkv-sglang
    rwkv_package.py       patch_rwkv_package for RWKV-7 models of the rwkv package

Only this folder knows other conventions: sequences `[B, T, C]` with C = H·N, states of values ×
keys, and a raw decay x that multiplies the state by `exp(-exp(x))`, where the rest of the package
uses `w = -exp(x)`. patch.py replaces a function and restores it.
"""
