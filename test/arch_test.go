// Package test holds the tests that cross packages.
package test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/argonaut-rdma/argonaut"

// layers lists, for each package tree, the trees of this module that its
// non-test files may import. A package may always import its own tree.
var layers = []struct {
	tree string
	may  []string
}{
	{"verbs/driver", nil},
	{"verbs/histogram", nil},
	{"verbs/iwarp", []string{"verbs/driver", "verbs"}},
	{"verbs/ibverbs", []string{"verbs/driver", "verbs"}},
	{"verbs/verbstest", []string{"verbs/driver", "verbs"}},
	{"verbs", []string{"verbs/driver", "verbs/histogram"}},
	{"buffer", []string{"verbs", "verbs/histogram"}},
	{"conn", []string{"buffer", "verbs", "verbs/histogram"}},
	{"messenger", []string{"buffer", "conn", "verbs/histogram"}},
	{"messenger/prometheus", []string{"buffer", "conn", "messenger", "verbs", "verbs/histogram"}},
	{"examples", []string{"buffer", "conn", "messenger", "verbs", "verbs/iwarp", "verbs/ibverbs"}},
	{"test", []string{"buffer", "conn", "messenger", "verbs", "verbs/driver", "verbs/iwarp", "verbs/ibverbs", "verbs/verbstest"}},
}

// cgoHome is the only package that may import "C".
const cgoHome = "verbs/ibverbs/internal/cverbs"

// outside lists the trees whose non-test files may import a module of others.
// What is not listed no package may: users get it with ours.
var outside = map[string][]string{
	"github.com/prometheus/client_golang": {"messenger/prometheus"}, // only who imports that pays for it
	"github.com/panjf2000/ants/v2":        {"buffer", "messenger"},
	"golang.org/x/sync":                   {"buffer", "verbs", "verbs/verbstest"},
	"golang.org/x/sys":                    {"buffer", "examples", "verbs/ibverbs", "verbs/iwarp"},
	"github.com/stretchr/testify":         {"test", "verbs/verbstest"},
	"go.uber.org/goleak":                  {"verbs/verbstest"},
	"github.com/alecthomas/kong":          {"examples"},
	"github.com/schollz/progressbar/v3":   {"examples"},
	"go.etcd.io/bbolt":                    {"examples"},
	"golang.org/x/term":                   {"examples"},
}

// collectors is the module that nobody but messenger/prometheus touches, in tests
// neither.
const collectors = "github.com/prometheus/client_golang"

// decides is what decides and does nothing: input and time in, actions out.
const decides = "messenger/internal/session"

type pkg struct {
	Dir          string
	ImportPath   string
	GoFiles      []string
	CgoFiles     []string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func packages(t *testing.T, tags string) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-tags", tags, "-json=Dir,ImportPath,GoFiles,CgoFiles,Imports,TestImports,XTestImports", module+"/...")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	var all []pkg
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		err := dec.Decode(&p)
		if err == io.EOF {
			return all
		}
		require.NoError(t, err)
		all = append(all, p)
	}
}

// ruleOf finds the rule of the package p (relative to the module): that of the
// longest tree that holds it.
func ruleOf(p string) (int, bool) {
	best, found := -1, false
	for i, l := range layers {
		if p == l.tree || strings.HasPrefix(p, l.tree+"/") {
			if !found || len(l.tree) > len(layers[best].tree) {
				best, found = i, true
			}
		}
	}
	return best, found
}

func TestImportsPointDown(t *testing.T) {
	for _, tags := range []string{"", "ibverbs", "invariants"} {
		pkgs := packages(t, tags)
		require.NotEmpty(t, pkgs)
		for _, p := range pkgs {
			rel := strings.TrimPrefix(p.ImportPath, module+"/")
			rule, ok := ruleOf(rel)
			require.True(t, ok, "%s belongs to no layer: add it to the table or move it", rel)
			for _, imp := range p.Imports {
				if !strings.HasPrefix(imp, module+"/") {
					requireOutside(t, rel, layers[rule].tree, imp)
					continue
				}
				dep := strings.TrimPrefix(imp, module+"/")
				depRule, ok := ruleOf(dep)
				require.True(t, ok, dep)
				if depRule == rule {
					continue
				}
				require.Contains(t, layers[rule].may, layers[depRule].tree, "%s imports %s", rel, dep)
			}
			if len(p.CgoFiles) > 0 || slices.Contains(p.Imports, "C") {
				require.Equal(t, cgoHome, rel, `only this package may import "C"`)
			}
		}
	}
}

// requireOutside refuses an import of another module that the tree of the package
// rel may not have.
func requireOutside(t *testing.T, rel, tree, imp string) {
	t.Helper()
	if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") {
		return // the standard library
	}
	for mod, trees := range outside {
		if imp == mod || strings.HasPrefix(imp, mod+"/") {
			require.Contains(t, trees, tree, "%s imports %s", rel, imp)
			return
		}
	}
	require.Fail(t, "a module that the table does not know", "%s imports %s", rel, imp)
}

// Who does not ask for metrics does not get their library, and needs none of it
// to run our tests but those of the collector.
func TestOnlyTheCollectorImportsItsLibrary(t *testing.T) {
	found := false
	for _, p := range packages(t, "") {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		for _, imp := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if imp == collectors || strings.HasPrefix(imp, collectors+"/") {
				require.Equal(t, "messenger/prometheus", rel, "%s imports %s", rel, imp)
				found = true
			}
		}
	}
	require.True(t, found, "the rule is about nothing")
}

// The core of verbs and memory are for every provider: neither has sockets.
func TestCoreHasNoSockets(t *testing.T) {
	for _, p := range packages(t, "") {
		switch rel := strings.TrimPrefix(p.ImportPath, module+"/"); rel {
		case "verbs", "verbs/histogram", "buffer":
			for _, imp := range p.Imports {
				require.False(t, imp == "net" || strings.HasPrefix(imp, "net/"), "%s imports %s", rel, imp)
			}
		}
	}
}

// Sessions decide without a goroutine, a clock or a lock.
func TestSessionsArePure(t *testing.T) {
	clock := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}
	all := packages(t, "")
	i := slices.IndexFunc(all, func(p pkg) bool { return p.ImportPath == module+"/"+decides })
	require.GreaterOrEqual(t, i, 0)
	p := all[i]
	for _, imp := range p.Imports {
		require.Contains(t, []string{"errors", "fmt", "time"}, imp, "%s imports %s", decides, imp)
	}
	require.NotEmpty(t, p.GoFiles)
	fset := token.NewFileSet()
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
		require.NoError(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.ChanType, *ast.SelectStmt, *ast.SendStmt:
				require.Fail(t, "it has goroutines", "%v", fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" {
					require.NotContains(t, clock, n.Sel.Name, "it has a clock: %v", fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

// The rules themselves must not let two trees import each other.
func TestLayersHaveNoCycle(t *testing.T) {
	may := map[string][]string{}
	for _, l := range layers {
		require.Equal(t, path.Clean(l.tree), l.tree)
		may[l.tree] = l.may
	}
	var visit func(tree string, trail []string)
	visit = func(tree string, trail []string) {
		require.NotContains(t, trail, tree, "cycle: %v", trail)
		for _, d := range may[tree] {
			visit(d, append(trail, tree))
		}
	}
	for tree := range may {
		visit(tree, nil)
	}
}
