// Package kvcache writes new keys and values into a KV cache, with rotary embedding and
// quantization.
package kvcache
