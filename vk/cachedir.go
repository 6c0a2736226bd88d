package vk

import (
	"os"
	"path/filepath"
)

// CacheDirEnv is the environment variable that moves what is kept between runs.
const CacheDirEnv = "VKATTN_CACHE_DIR"

// CacheDir is the folder for what is kept between runs and can be made again:
// compiled pipelines in its folder "pipelines", tuning results beside it. It is
// the environment's VKATTN_CACHE_DIR, else vkattn in the user's cache folder.
// "" means that nothing is to be kept: VKATTN_CACHE_DIR is set to nothing or to
// "off", or the user has no cache folder. The folder need not exist; who writes
// makes it, and treats failure as having no cache.
func CacheDir() string {
	if dir, set := os.LookupEnv(CacheDirEnv); set {
		if dir == "off" {
			return ""
		}
		return dir
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(base, "vkattn")
}
