package bench

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/monitor"
	"vkattn/cmd/vkattn/internal/peer"
)

// schemaFile documents the JSON of a benchmark for its users.
const schemaFile = "../../../../docs/bench.schema.json"

type document struct {
	Run  *RunInfo `json:"run"`
	Rows []*Row   `json:"rows"`
}

// documentSchema derives the schema from the types and their comments.
func documentSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text := &jsonschema.Schema{Type: "string"}
	types := map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[attention.Causal](): text, reflect.TypeFor[attention.DType](): text, reflect.TypeFor[attention.KVType](): text,
		reflect.TypeFor[Pass]():             {Type: "string", Enum: []any{"fwd", "bwd", "fwdbwd"}},
		reflect.TypeFor[Status]():           {Type: "string", Enum: []any{OK, Fail, Unsupported, OOM, Broken, Interrupted, Ablated}},
		reflect.TypeFor[Number]():           {Types: []string{"number", "null"}},
		reflect.TypeFor[time.Duration]():    {Type: "integer"},
		reflect.TypeFor[monitor.Throttle](): {Type: "array", Items: text},
	}
	schema, err := jsonschema.For[document](&jsonschema.ForOptions{TypeSchemas: types})
	require.NoError(t, err)
	schema.Title = "JSON of vkattn bench, version " + strconv.Itoa(SchemaVersion)
	schema.Description = "One document has the run and its rows. A line of JSON Lines is a row with the run in its field \"run\". " +
		"Durations whose names end in _ns are in nanoseconds."
	comments := fieldComments(t, ".", "../*")
	describe(schema, reflect.TypeFor[document](), comments)
	return schema
}

// describe sets the descriptions of properties to the comments of the fields. Objects take
// further properties: a later version may add some.
func describe(s *jsonschema.Schema, of reflect.Type, comments map[string]string) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		if of.Kind() == reflect.Slice && s.Items != nil {
			s = s.Items
		}
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || s.Properties == nil {
		return
	}
	s.AdditionalProperties = nil
	for _, f := range reflect.VisibleFields(of) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		p := s.Properties[name]
		if p == nil {
			continue
		}
		owner := of
		if len(f.Index) > 1 {
			owner = of.Field(f.Index[0]).Type
		}
		p.Description = inJSON(comments[path.Base(owner.PkgPath())+"."+owner.Name()+"."+f.Name], owner)
		describe(p, f.Type, comments)
	}
}

// inJSON replaces the names of fields by their names in JSON, where they are names and not
// words: at the beginning of a comment, and where a second letter is a capital.
func inJSON(comment string, of reflect.Type) string {
	for _, f := range reflect.VisibleFields(of) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			continue
		}
		pattern := `^` + f.Name + `\b`
		if strings.ContainsFunc(f.Name[1:], unicode.IsUpper) {
			pattern = `\b` + f.Name + `\b`
		}
		comment = regexp.MustCompile(pattern).ReplaceAllString(comment, name)
	}
	return comment
}

// fieldComments are the comments of the fields of all structs in some folders, by
// "package.Type.Field".
func fieldComments(t *testing.T, folders ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, folder := range folders {
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		require.NoError(t, err)
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
			require.NoError(t, err)
			ast.Inspect(parsed, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				body, ok := spec.Type.(*ast.StructType)
				if !ok {
					return true
				}
				for _, f := range body.Fields.List {
					for _, name := range f.Names {
						out[parsed.Name.Name+"."+spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
					}
				}
				return true
			})
		}
	}
	return out
}

func TestTheSchemaIsThatOfTheTypes(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, WriteJSON(&out, documentSchema(t)))
	if *update {
		require.NoError(t, os.WriteFile(schemaFile, out.Bytes(), 0o644))
	}
	want := readFile(t, schemaFile)
	require.Equal(t, string(want), out.String(), "run the test with -update; if a field was renamed or removed, raise SchemaVersion")
}

func TestRowsFollowTheSchema(t *testing.T) {
	var schema jsonschema.Schema
	text := readFile(t, schemaFile)
	require.NoError(t, json.Unmarshal(text, &schema))
	resolved, err := schema.Resolve(nil)
	require.NoError(t, err)
	info := &RunInfo{Schema: SchemaVersion, Program: "vkattn", Peers: []peer.Info{{Name: "flash"}}, Baselines: []string{"copy"}, Timing: &Timing{Warmup: -1}}
	for name, rows := range map[string][]*Row{"results": exampleRows(), "ladder": ladderRows(true, false), "ablation": ladderRows(false, true),
		"serving": servingRows(), "decode": decodeRows()} {
		var out bytes.Buffer
		p := NewPrinter("json", &out, info)
		for _, r := range rows {
			require.NoError(t, p.Row(r))
		}
		require.NoError(t, p.Close(info))
		var doc any
		require.NoError(t, json.Unmarshal(out.Bytes(), &doc))
		require.NoError(t, resolved.Validate(doc), name)
		doc.(map[string]any)["rows"].([]any)[0].(map[string]any)["status"] = "fine"
		require.Error(t, resolved.Validate(doc), "the schema refuses what is wrong")
	}
}
