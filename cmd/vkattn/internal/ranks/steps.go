package ranks

import (
	"slices"

	"vkattn/attention/parallel"
)

// stepTimes are the times of the steps of many calls on this rank.
type stepTimes struct {
	names []string // in the order of the steps
	us    map[string][]float64
	polls map[string][]float64
}

func (x *stepTimes) add(s parallel.DecodeStep) {
	if x.us == nil {
		x.us, x.polls = map[string][]float64{}, map[string][]float64{}
	}
	if _, ok := x.us[s.Name]; !ok {
		x.names = append(x.names, s.Name)
	}
	x.us[s.Name] = append(x.us[s.Name], s.Took.Seconds()*1e6)
	if s.Polls > 0 {
		x.polls[s.Name] = append(x.polls[s.Name], float64(s.Polls))
	}
}

// medians are steps with one rank each.
func (x *stepTimes) medians() []Step {
	var list []Step
	for _, name := range x.names {
		step := Step{Name: name, Us: []float64{median(x.us[name])}}
		if polls := x.polls[name]; polls != nil {
			step.Polls = []float64{median(polls)}
		}
		list = append(list, step)
	}
	return list
}

// stepsOf joins the medians of all ranks; a step that some rank does not have is left out.
func stepsOf(all [][]Step) []Step {
	var list []Step
	for _, first := range all[0] {
		step := Step{Name: first.Name}
		for _, of := range all {
			if i := slices.IndexFunc(of, func(s Step) bool { return s.Name == first.Name }); i >= 0 {
				step.Us = append(step.Us, of[i].Us...)
				step.Polls = append(step.Polls, of[i].Polls...)
			}
		}
		if len(step.Us) == len(all) {
			list = append(list, step)
		}
	}
	return list
}

func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}
