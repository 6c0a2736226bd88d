// Package kvcache writes new keys and values into a KV cache, with rotary embedding and
// quantization. Programs import vkattn/attention, which has the names of this package as
// aliases.
package kvcache
