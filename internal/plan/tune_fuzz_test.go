package plan

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
)

// A tuning cache file is ignored with a reason of one line, or it is of this device and
// driver and can be written again. A tile that comes from its entries is always in the
// table and within the limits.
func FuzzTuningCache(f *testing.F) {
	caps := h200Caps()
	v, r := tuneProblem(f, caps, problem.Config{HeadDim: 128}, problem.TierCoopMat2, large)
	class := ClassOf(v, problem.Config{HeadDim: 128}, r.Shape)
	file := func(format int, d tuningDevice, tile tileKey) []byte {
		e := TuningEntry{SPIRV: v.SPIRV(), Tile: tile, Ms: 1, HeuristicMs: 2, Shape: r.Shape.String()}
		b, err := json.Marshal(tuningFile{Format: format, Device: d, Classes: map[string]TuningEntry{class: e}})
		require.NoError(f, err)
		return b
	}
	keys := []tileKey{KeyOf(v.Tile), "", "1", KeyOf(v.Tile) + ",1", "[4294967296," + KeyOf(v.Tile) + "]"}
	for _, t := range Tilings(v)[:20] {
		keys = append(keys, KeyOf(t))
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
		check := func(e TuningEntry) {
			if got, reason := e.tile(caps, v); reason == "" {
				require.True(t, slices.Contains(Tilings(v), got))
				again, reason := tiling(caps, v, KeyOf(got))
				require.Empty(t, reason)
				require.Equal(t, got, again)
			}
		}
		check(TuningEntry{SPIRV: v.SPIRV(), Tile: tileKey(key)})
		classes, err := parseTuning(data, tuneDeviceInfo)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		for class, e := range classes {
			Stale(class, e)
			e.SPIRV = v.SPIRV()
			check(e)
		}
		_, err = json.Marshal(tuningFile{Format: tuningFormat, Device: tuneDeviceInfo, Classes: classes})
		require.NoError(t, err)
	})
}
