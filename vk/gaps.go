package vk

import (
	"slices"
	"strings"
)

// Need is a capability that a kernel or a call needs.
type Need struct {
	Name string // Vulkan's name of the feature or extension
	Have func(*Caps) bool
}

// Without says which of the needs are not met, "" if all are: those that the device does not
// support, and those that it supports and that are not enabled, as on a device that Wrap
// returned.
func (c *Caps) Without(needs ...Need) string {
	if c == nil {
		c = &Caps{}
	}
	var lacking, off, gaps []string
	for _, need := range needs {
		list := &off
		switch {
		case need.Have != nil && need.Have(c):
			continue
		case need.Have == nil || !need.Have(c.withSupported()):
			list = &lacking
		}
		if !slices.Contains(*list, need.Name) {
			*list = append(*list, need.Name)
		}
	}
	if lacking != nil {
		gaps = append(gaps, "lacks "+strings.Join(lacking, ", ")+" (not supported)")
	}
	if off != nil {
		gaps = append(gaps, "has "+strings.Join(off, ", ")+", not enabled")
	}
	if gaps == nil {
		return ""
	}
	return "the device " + strings.Join(gaps, ", and ")
}

// withSupported returns the capabilities with each feature that could be enabled.
func (c *Caps) withSupported() *Caps {
	all := *c
	for bit := range featureCount {
		*all.feature(bit) = *c.feature(bit) || c.supported>>bit&1 != 0
	}
	return &all
}

// missingFunction is a function that a driver does not have, with the field of Caps that needs it; "":
// every device needs it.
type missingFunction struct{ function, field string }

// missingFunctions names functions that a driver does not have: those that every device
// needs, and for each feature that is said to be enabled, by its field of Caps, its own.
func missingFunctions(missing []missingFunction) (core []string, features string) {
	var fields []string
	of := map[string][]string{}
	for _, m := range missing {
		if !slices.Contains(fields, m.field) && m.field != "" {
			fields = append(fields, m.field)
		}
		of[m.field] = append(of[m.field], m.function)
	}
	for i, field := range fields {
		fields[i] = field + " (no " + strings.Join(of[field], ", ") + ")"
	}
	return of[""], strings.Join(fields, ", ")
}

// functionsError is the error of a device or an instance whose functions are missing. said
// tells whether the caller said which features are enabled.
func functionsError(op string, missing []missingFunction, said bool) error {
	core, features := missingFunctions(missing)
	switch {
	case len(core) > 0 && features != "":
		return unsupported(op, "the driver has no %s; and for features that are enabled: %s", strings.Join(core, ", "), features)
	case len(core) > 0:
		return unsupported(op, "the driver has no %s", strings.Join(core, ", "))
	case said:
		return invalid(op, "Enabled has features that were not enabled: %s", features)
	}
	return unsupported(op, "the driver enabled features without their functions: %s", features)
}

// valid makes a text of a driver UTF-8, as Vulkan wants it: others write it into files and to terminals. A
// driver that cuts a name may cut a character.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
