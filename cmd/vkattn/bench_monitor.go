package main

import (
	"fmt"
	"io"
	"sync"

	"vkattn/cmd/vkattn/internal/monitor"
	"vkattn/cmd/vkattn/internal/outfile"
	"vkattn/vk"
)

// monitorUsage is the help of --monitor.
const monitorUsage = "write clocks, temperature, power and throttle reasons of an NVIDIA GPU to `file` every 10 ms, as CSV with the columns of nvidia-smi"

// openMonitor starts to read the clocks of a device and writes them to path, if it is not
// empty. Where the clocks cannot be read the sampler is nil and the file has its header
// alone. stop ends the readings and may be called again.
func (a *app) openMonitor(set *outfile.Set, path string, dev *vk.Device) (s *monitor.Sampler, stop func() error, err error) {
	gpu := monitor.Open(dev)
	var csv io.Writer
	if path != "" {
		if csv, err = set.Add(path); err != nil {
			err = badInputf("--monitor %s: %w", path, err)
		} else if _, err = io.WriteString(csv, monitor.CSVHeader); err != nil {
			err = fmt.Errorf("--monitor %s: %w", path, err)
		}
		if err != nil {
			if gpu != nil {
				gpu.Close()
			}
			return nil, func() error { return nil }, err
		}
		if gpu == nil {
			fmt.Fprintln(a.stderr, "vkattn: --monitor: no clocks of this device can be read (NVML reads NVIDIA GPUs only)")
		}
	}
	s = monitor.Start(gpu, csv, monitor.Interval)
	return s, sync.OnceValue(func() error {
		if err := s.Close(); err != nil {
			return fmt.Errorf("--monitor %s: %w", path, err)
		}
		return nil
	}), nil
}
