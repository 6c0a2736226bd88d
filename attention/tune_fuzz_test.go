package attention

import (
	"encoding/json"
	"slices"
	"testing"

	"vkattn/attention/problem"

	"github.com/stretchr/testify/require"
)

// A tuning cache file is ignored with a reason of one line, or it is of this device and
// driver and can be written again. A tile that comes from its entries is always in the
// table and within the limits.
func FuzzTuningCache(f *testing.F) {
	caps := h200Caps()
	v, r := tuneProblem(f, caps, problem.Config{HeadDim: 128}, problem.TierCoopMat2, large)
	class := classOf(v, problem.Config{HeadDim: 128}, r.shape)
	file := func(format int, d tuningDevice, tile tileKey) []byte {
		e := tuningEntry{SPIRV: v.spirv(), Tile: tile, Ms: 1, HeuristicMs: 2, Shape: r.shape.String()}
		b, err := json.Marshal(tuningFile{Format: format, Device: d, Classes: map[string]tuningEntry{class: e}})
		require.NoError(f, err)
		return b
	}
	keys := []tileKey{keyOf(v.tile), "", "1", keyOf(v.tile) + ",1", "[4294967296," + keyOf(v.tile) + "]"}
	for _, t := range tilings(v)[:20] {
		keys = append(keys, keyOf(t))
	}
	for _, key := range keys {
		f.Add(file(tuningFormat, tuneDeviceInfo, key), string(key))
	}
	f.Add(file(tuningFormat+1, tuneDeviceInfo, ""), "-1")
	f.Add(file(tuningFormat, tuningDevice{}, ""), "x")
	f.Add([]byte(`{"format":2,"device":{"uuid":"0102","driver_uuid":"0a","driver_version":7},"classes":null}`), "0")
	f.Add([]byte(`{"format":1e400}`), "")
	f.Add([]byte(`null`), "")
	f.Fuzz(func(t *testing.T, data []byte, key string) {
		check := func(e tuningEntry) {
			if got, reason := e.tile(caps, v, r.shape); reason == "" {
				require.True(t, slices.Contains(tilings(v), got))
				again, reason := tiling(caps, v, keyOf(got), r.shape)
				require.Empty(t, reason)
				require.Equal(t, got, again)
			}
		}
		check(tuningEntry{SPIRV: v.spirv(), Tile: tileKey(key)})
		classes, err := parseTuning(data, tuneDeviceInfo)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		for class, e := range classes {
			stale(class, e)
			e.SPIRV = v.spirv()
			check(e)
		}
		_, err = json.Marshal(tuningFile{Format: tuningFormat, Device: tuneDeviceInfo, Classes: classes})
		require.NoError(t, err)
	})
}
