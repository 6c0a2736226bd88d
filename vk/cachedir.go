package vk

import (
	"os"
	"path/filepath"
)

// CacheDirEnv is the environment variable that sets CacheDir.
const CacheDirEnv = "VKATTN_CACHE_DIR"

// CacheDir is the folder for caches that can be rebuilt: compiled pipelines in its folder
// "pipelines", tuning results in "tuning-v2". It is the environment variable
// VKATTN_CACHE_DIR, or else "vkattn" in the user's cache folder. CacheDir returns "" if
// nothing may be cached: VKATTN_CACHE_DIR is empty or "off", or the user has no cache
// folder. The folder need not exist; writers create it and go on without a cache if they
// cannot.
func CacheDir() string {
	if dir, set := os.LookupEnv(CacheDirEnv); set {
		if dir == "off" {
			return ""
		}
		return dir
	}
	base, err := os.UserCacheDir()
	if err != nil || !filepath.IsAbs(base) { // a relative HOME would put the cache where the process runs
		return ""
	}
	return filepath.Join(base, "vkattn")
}
