// Package test holds the tests that cross packages.
package test

import (
	"encoding/json"
	"io"
	"os/exec"
	"path"
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

type pkg struct {
	ImportPath string
	Imports    []string
	CgoFiles   []string
}

func packages(t *testing.T, tags string) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-tags", tags, "-json=ImportPath,Imports,CgoFiles", module+"/...")
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
