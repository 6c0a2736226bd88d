package plan

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"vkattn/internal/cachefile"
	"vkattn/vk"
)

// The tuning cache is one JSON file for each device and driver version, in the folder
// tuning-v2 of the cache folder. A bad file costs only the tuning. A file that is damaged
// or of another format, device or driver is ignored with a note. So is an entry with
// other SPIR-V, or with a tile that is not in the table or exceeds a limit.

const (
	tuningFolder = "tuning-v2"
	tuningFormat = 2
	TuningMost   = 8 << 20 // largest file that is read, in bytes
)

// ErrNoCache says that nothing is read or stored because vk.CacheDir returns no folder.
var ErrNoCache = fmt.Errorf("there is no cache folder; %s moves it", vk.CacheDirEnv)

// TuningDir returns the folder of the files, or "" if there is no cache folder.
func TuningDir() string {
	if dir := vk.CacheDir(); dir != "" {
		return filepath.Join(dir, tuningFolder)
	}
	return ""
}

// tuningFile is the content of a file.
type tuningFile struct {
	Format  int                    `json:"format"`
	Device  tuningDevice           `json:"device"`
	Classes map[string]TuningEntry `json:"classes"`
}

// tuningDevice names the device and driver on which the tiles were timed.
type tuningDevice struct {
	Name          string `json:"name"`
	UUID          string `json:"uuid"`
	Driver        string `json:"driver"`
	DriverUUID    string `json:"driver_uuid"`
	DriverVersion uint32 `json:"driver_version"`
}

// TuningEntry is the tuning result of a class of shapes.
type TuningEntry struct {
	SPIRV       string    `json:"spirv_sha256"` // hash of the module
	Tile        tileKey   `json:"tile"`
	Name        string    `json:"name"` // as plans print it
	Ms          float64   `json:"ms"`
	HeuristicMs float64   `json:"heuristic_ms"`
	Shape       string    `json:"shape"` // the shape that was timed
	When        time.Time `json:"when"`
}

func TuningDeviceOf(d *vk.DeviceInfo) tuningDevice {
	return tuningDevice{Name: d.Name, UUID: hex.EncodeToString(d.UUID[:]), Driver: d.DriverName + " " + d.DriverInfo,
		DriverUUID: hex.EncodeToString(d.DriverUUID[:]), DriverVersion: d.DriverVersion}
}

// same reports whether times of d hold for e. It ignores the names, which are for people.
func (d tuningDevice) same(e tuningDevice) bool {
	return d.UUID == e.UUID && d.DriverUUID == e.DriverUUID && d.DriverVersion == e.DriverVersion
}

func (d tuningDevice) File() string { return fmt.Sprintf("%s-%08x.json", d.UUID, d.DriverVersion) }

// readTuning reads a file's content. The error says why the file is ignored.
func readTuning(data []byte) (f tuningFile, err error) {
	if err := json.Unmarshal(data, &f); err != nil {
		return f, fmt.Errorf("damaged: %w", err)
	}
	if f.Format != tuningFormat {
		return f, fmt.Errorf("format %d, this build reads %d", f.Format, tuningFormat)
	}
	return f, nil
}

// parseTuning reads a file's content for a device. The error says why the file is ignored.
func parseTuning(data []byte, d tuningDevice) (map[string]TuningEntry, error) {
	f, err := readTuning(data)
	switch {
	case err != nil:
		return nil, err
	case f.Device.UUID != d.UUID:
		return nil, fmt.Errorf("tuned on another device (%q)", f.Device.Name)
	case !f.Device.same(d):
		return nil, fmt.Errorf("tuned with another driver (%q)", f.Device.Driver)
	}
	return f.Classes, nil
}

// TuningFiles lists the files of a folder, of all devices, by name.
func TuningFiles(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var paths []string
	for _, f := range list {
		if filepath.Ext(f.Name()) == ".json" {
			paths = append(paths, filepath.Join(dir, f.Name()))
		}
	}
	return paths, err
}

// LoadTuningOf reads the tuning results of a file, of whatever device. If it is ignored, the
// note says why.
func LoadTuningOf(path string) (d tuningDevice, classes map[string]TuningEntry, note string) {
	data, err := cachefile.Read(path, TuningMost)
	var f tuningFile
	if err == nil {
		f, err = readTuning(data)
	}
	if err != nil {
		return f.Device, nil, ignored(path, err)
	}
	return f.Device, f.Classes, ""
}

// ignored is the note of a file that is not read.
func ignored(path string, err error) string {
	return fmt.Sprintf("tuning cache %s ignored: %v", path, err)
}

// LoadTuning reads the tuning results of a device. If there are none, the note says why,
// unless the device was never tuned.
func LoadTuning(path string, d tuningDevice) (classes map[string]TuningEntry, note string) {
	data, err := cachefile.Read(path, TuningMost)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Another version of the driver has a file of its own.
		dir := filepath.Dir(path)
		if others, _ := fs.Glob(os.DirFS(dir), d.UUID+"-*.json"); len(others) > 0 {
			return nil, fmt.Sprintf("the device was tuned with another driver version, not with this one (%s)", filepath.Join(dir, others[0]))
		}
		return nil, ""
	case err != nil:
		return nil, ignored(path, err)
	}
	if classes, err = parseTuning(data, d); err != nil {
		return nil, ignored(path, err)
	}
	return classes, ""
}

// saveTuning adds classes to the file. Other processes may add to it at the same time. It
// replaces a file that would be ignored, and drops entries that stale reports.
func saveTuning(path string, d tuningDevice, add map[string]TuningEntry, stale func(class string, e TuningEntry) bool) error {
	return cachefile.Update(path, TuningMost, func(old []byte) ([]byte, error) {
		f := tuningFile{Format: tuningFormat, Device: d, Classes: map[string]TuningEntry{}}
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
