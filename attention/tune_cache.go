package attention

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"vkattn/vk"
	"vkattn/vk/cachefile"
)

// The tuning cache is one JSON file for each device and driver version, in
// tuning-v2 of the cache folder. Whatever is wrong with it costs the tuning and
// nothing else: a file that is damaged, of another format, device or driver, and
// an entry of other SPIR-V or with a tile that is not in the table or over a limit,
// are ignored with a note.

const (
	tuningFolder = "tuning-v2"
	tuningFormat = 2
	tuningMost   = 8 << 20 // bytes of a file worth reading
)

// errNoCache is why nothing is read or stored where vk.CacheDir says so.
var errNoCache = fmt.Errorf("there is no cache folder; %s moves it", vk.CacheDirEnv)

// tuningDir is the folder of the files, "" for none.
func tuningDir() string {
	if dir := vk.CacheDir(); dir != "" {
		return filepath.Join(dir, tuningFolder)
	}
	return ""
}

// tuningFile is the file's content.
type tuningFile struct {
	Format  int                    `json:"format"`
	Device  tuningDevice           `json:"device"`
	Classes map[string]tuningEntry `json:"classes"`
}

// tuningDevice says which device and driver the times are of.
type tuningDevice struct {
	Name          string `json:"name"`
	UUID          string `json:"uuid"`
	Driver        string `json:"driver"`
	DriverUUID    string `json:"driver_uuid"`
	DriverVersion uint32 `json:"driver_version"`
}

// tuningEntry is what a class of shapes was tuned to.
type tuningEntry struct {
	SPIRV       string    `json:"spirv_sha256"` // of the module
	Tile        tileKey   `json:"tile"`
	Name        string    `json:"name"` // as plans print it
	Ms          float64   `json:"ms"`
	HeuristicMs float64   `json:"heuristic_ms"`
	Shape       string    `json:"shape"` // that was timed
	When        time.Time `json:"when"`
}

func tuningDeviceOf(d *vk.DeviceInfo) tuningDevice {
	return tuningDevice{Name: d.Name, UUID: hex.EncodeToString(d.UUID[:]), Driver: d.DriverName + " " + d.DriverInfo,
		DriverUUID: hex.EncodeToString(d.DriverUUID[:]), DriverVersion: d.DriverVersion}
}

// same reports whether times of d are times of e: names are for people.
func (d tuningDevice) same(e tuningDevice) bool {
	return d.UUID == e.UUID && d.DriverUUID == e.DriverUUID && d.DriverVersion == e.DriverVersion
}

func (d tuningDevice) file() string { return fmt.Sprintf("%s-%08x.json", d.UUID, d.DriverVersion) }

// parseTuning reads a file's content for a device. The error says why it is to be
// ignored.
func parseTuning(data []byte, d tuningDevice) (map[string]tuningEntry, error) {
	var f tuningFile
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("damaged: %w", err)
	}
	switch {
	case f.Format != tuningFormat:
		return nil, fmt.Errorf("format %d, this build reads %d", f.Format, tuningFormat)
	case f.Device.UUID != d.UUID:
		return nil, fmt.Errorf("tuned on another device (%s)", f.Device.Name)
	case !f.Device.same(d):
		return nil, fmt.Errorf("tuned with another driver (%s)", f.Device.Driver)
	}
	return f.Classes, nil
}

// loadTuning reads what a device was tuned to, and why there is nothing where that
// is worth a note.
func loadTuning(path string, d tuningDevice) (classes map[string]tuningEntry, note string) {
	ignored := func(err error) string { return fmt.Sprintf("tuning cache %s ignored: %v", path, err) }
	data, err := cachefile.Read(path, tuningMost)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Another version of the driver has a file of its own.
		if others, _ := filepath.Glob(filepath.Join(filepath.Dir(path), d.UUID+"-*.json")); len(others) > 0 {
			return nil, fmt.Sprintf("the device was tuned with another driver version, not with this one (%s)", others[0])
		}
		return nil, ""
	case err != nil:
		return nil, ignored(err)
	}
	if classes, err = parseTuning(data, d); err != nil {
		return nil, ignored(err)
	}
	return classes, ""
}

// saveTuning adds classes to the file, which other processes may be adding to. A
// file that would be ignored is replaced, and entries of other SPIR-V, as stale
// says, are dropped.
func saveTuning(path string, d tuningDevice, add map[string]tuningEntry, stale func(class string, e tuningEntry) bool) error {
	return cachefile.Update(path, tuningMost, func(old []byte) ([]byte, error) {
		f := tuningFile{Format: tuningFormat, Device: d, Classes: map[string]tuningEntry{}}
		if old != nil {
			if classes, err := parseTuning(old, d); err == nil {
				for class, e := range classes {
					if !stale(class, e) {
						f.Classes[class] = e
					}
				}
			}
		}
		for class, e := range add {
			f.Classes[class] = e
		}
		data, err := json.MarshalIndent(f, "", "  ")
		return append(data, '\n'), err
	})
}
