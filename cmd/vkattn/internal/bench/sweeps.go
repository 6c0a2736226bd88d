package bench

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"vkattn/internal/hostmem"
)

// maxProblems bounds a cross product. A larger one is a mistake in a list.
const maxProblems = 10000

// cross gives each problem of a list each of the values; without values the list is as it was. Ceilings have
// no axes. A backward pass always reads LSE.
func (a *Axis) cross(list []Problem, values []any) (out []Problem, err error) {
	if len(values) == 0 {
		return list, nil
	}
	if hostmem.Product(len(list), len(values)) > maxProblems {
		return nil, fmt.Errorf("the sweep has over %d problems", maxProblems)
	}
	for _, p := range list {
		if p.Ceiling != "" || a.Flag == "lse" && p.Pass != PassForward {
			out = append(out, p)
			continue
		}
		for _, v := range values {
			q := p
			a.set(&q, v)
			out = append(out, q)
		}
	}
	return out, nil
}

// Sweep has lists of values by the flags of their axes. Their cross product is a benchmark.
type Sweep map[string][]any

// Lists is the sweep of a text such as "batch-size=1 seqlen=1024-4096*2 causal=none,top-left", of the program itself.
func Lists(text string) Sweep {
	s := Sweep{}
	for _, word := range strings.Fields(text) {
		flag, list, _ := strings.Cut(word, "=")
		values, err := AxisOf(flag).Parse(list, s) // tables come first
		if err != nil {
			panic(fmt.Sprintf("%s: %v", word, err))
		}
		s[flag] = values
	}
	return s
}

// ListOf are the values of an axis as they are.
func ListOf[T any](s Sweep, flag string) (list []T) {
	for _, v := range s[flag] {
		list = append(list, v.(T))
	}
	return list
}

// With is the sweep with the lists of another in place of its own. The sequences of --varlen replace batch
// and lengths.
func (s Sweep) With(given Sweep) Sweep {
	out := maps.Clone(s)
	maps.Copy(out, given)
	if len(out["varlen"]) > 0 {
		for _, flag := range []string{"batch-size", "seqlen", "seqlen-k"} {
			delete(out, flag)
		}
	}
	return out
}

// Problems is the cross product of the lists.
func (s Sweep) Problems() ([]Problem, error) { return s.cross([]Problem{{}}) }

func (s Sweep) cross(list []Problem) (_ []Problem, err error) {
	for _, a := range Axes {
		if list, err = a.cross(list, s[a.Flag]); err != nil {
			return nil, err
		}
	}
	for _, p := range list {
		if dv, d := p.Config.ValueDim(), p.Config.HeadDim; p.SharedKV && dv > d {
			return nil, fmt.Errorf("head dim %d of V is over head dim %d of K, in whose rows it lies", dv, d)
		}
		if kv := p.Config.KeyType; kv.Latent() && !p.SharedKV {
			return nil, fmt.Errorf("--kv-dtype %v needs --shared-kv: V is in K", kv)
		}
		if p.Options.SparseTopK > 0 && (p.Options.SparseRatio > 0 || p.Blocks > 0) {
			return nil, errors.New("--sparse-topk excludes --sparse-ratio and --block-ratio")
		}
	}
	return list, nil
}

// OfSuite are the problems of a suite that the lists select, with its passes unless the lists have some.
// Storage types select nothing but ceilings: a suite runs once in each.
func (s Sweep) OfSuite(list []Problem, passes []Pass) (out []Problem, err error) {
	crossed := Sweep{"lse": s["lse"], "pass": s["pass"]}
	if len(crossed["pass"]) == 0 {
		for _, p := range passes {
			crossed["pass"] = append(crossed["pass"], p)
		}
	}
	list, err = crossed.cross(list)
	return slices.DeleteFunc(list, func(p Problem) bool { return !s.Has(p) }), err
}

// Has reports whether the lists that narrow a suite select a problem of it. An empty list selects all.
func (s Sweep) Has(p Problem) bool {
	for _, a := range Axes {
		untyped := a.Flag == "dtype" && p.Ceiling != "" && !p.Ceiling.typed()
		if list := s[a.Flag]; a.inSuites == narrows && len(list) > 0 && !untyped && !slices.Contains(list, a.get(&p)) {
			return false
		}
	}
	return true
}

// Narrows reports whether lists select problems of a suite.
func (s Sweep) Narrows() bool {
	return slices.ContainsFunc(Axes, func(a *Axis) bool {
		return a.inSuites == narrows && a.Flag != "dtype" && len(s[a.Flag]) > 0
	})
}

// NotInSuites is the flag of a list that no suite takes, empty if there is none.
func (s Sweep) NotInSuites() string {
	for _, a := range Axes {
		if a.inSuites == refused && len(s[a.Flag]) > 0 {
			return a.Flag
		}
	}
	return ""
}

// Some reports whether a list has a value that is not zero.
func (s Sweep) Some(flag string) bool {
	a := AxisOf(flag)
	return slices.ContainsFunc(s[flag], func(v any) bool { return v != a.zero })
}

// Impossible returns the error of a value that no problem of a list can have, given the error of each: nil if
// the problem is possible.
func Impossible(list []Problem, wrong []error) error {
	for _, a := range Axes {
		possible := map[any]bool{}
		for i := range list {
			possible[a.get(&list[i])] = possible[a.get(&list[i])] || wrong[i] == nil
		}
		for i := range list {
			if !possible[a.get(&list[i])] {
				return wrong[i]
			}
		}
	}
	return nil
}
