package shaders

import (
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Constant is a specialization constant.
type Constant struct {
	ID      uint32
	Name    string // as in GLSL: FRAG_M
	Comment string // its unit
}

var (
	constantLine  = regexp.MustCompile(`(?m)^layout\(constant_id = (\d+)\) const uint (\w+) = \w+;[ \t]*(?://[ \t]*(.*))?$`)
	localSizeLine = regexp.MustCompile(`(?m)^layout\(local_size_x_id = (\d+)\) in;[ \t]*(?://[ \t]*(.*))?$`)
)

// ConstantFiles lists the files of dir that declare constants: constants.glsl first, which
// every kernel includes, then those of kernel families.
func ConstantFiles(dir fs.FS) ([]string, error) {
	return fs.Glob(dir, "constants*.glsl") // sorted: '.' is before '_'
}

// ReadConstants reads the declarations of all constants, file by file.
func ReadConstants(dir fs.FS) ([]Constant, error) {
	files, err := ConstantFiles(dir)
	if err != nil {
		return nil, err
	}
	var source strings.Builder
	for _, name := range files {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, fmt.Errorf("shaders: %w", err)
		}
		source.Write(text)
	}
	return ParseConstants(source.String())
}

// ParseConstants reads the declarations in source in their order.
func ParseConstants(source string) ([]Constant, error) {
	var list []Constant
	add := func(id, name, comment string) error {
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return fmt.Errorf("shaders: constant %s: %w", name, err)
		}
		for _, c := range list {
			if c.ID == uint32(n) || c.Name == name {
				return fmt.Errorf("shaders: constants %s and %s: the same id or name", c.Name, name)
			}
		}
		list = append(list, Constant{uint32(n), name, comment})
		return nil
	}
	local := localSizeLine.FindStringSubmatch(source)
	if local == nil {
		return nil, fmt.Errorf("shaders: no local_size_x_id is declared")
	}
	if err := add(local[1], "LOCAL_SIZE", "invocations per workgroup"); err != nil {
		return nil, err
	}
	for _, m := range constantLine.FindAllStringSubmatch(source, -1) {
		if err := add(m[1], m[2], m[3]); err != nil {
			return nil, err
		}
	}
	if declared := strings.Count(source, "\nlayout(constant_id"); declared != len(list)-1 {
		return nil, fmt.Errorf("shaders: %d constants are declared, %d understood", declared, len(list)-1)
	}
	return list, nil
}

// GoName is the constant's name in Go: FRAG_M is ConstFragM.
func (c Constant) GoName() string {
	name := "Const"
	for _, word := range strings.Split(strings.ToLower(c.Name), "_") {
		name += strings.ToUpper(word[:1]) + word[1:]
	}
	return name
}

var constantIDs = sync.OnceValue(func() map[string]uint32 {
	ids := make(map[string]uint32, len(constantNames))
	for id, name := range constantNames {
		ids[name] = id
	}
	return ids
})

// ConstantID is the id of a specialization constant by its name in GLSL.
func ConstantID(name string) (id uint32, ok bool) {
	id, ok = constantIDs()[name]
	return id, ok
}
