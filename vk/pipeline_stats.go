package vk

// Statistic is a number that the driver's compiler reports of a pipeline, such as its
// registers, spills or instructions.
type Statistic struct {
	Executable, Name, Description string
	Value                         float64
}

// Statistics returns the compiler's statistics in its order. Without Options.Stats, or
// without VK_KHR_pipeline_executable_properties, the error matches ErrUnsupported.
func (p *Pipeline) Statistics() ([]Statistic, error) {
	const op = "Statistics"
	if err := p.device().enter(op); err != nil {
		return nil, err
	}
	defer p.d.leave()
	if p.retain() != nil { // another goroutine may close it during the call
		return nil, closed(op)
	}
	defer p.release()
	if !p.d.stats {
		return nil, unsupported(op, "the device was not opened with Stats, or cannot tell")
	}
	list, r := hostStatistics(p.d.c, p.handle)
	return list, p.d.check("vkGetPipelineExecutableStatisticsKHR", r)
}
