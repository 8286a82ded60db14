package messenger

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The table of Ceph's tests names tests that exist.
func TestTableOfCephsTests(t *testing.T) {
	table, err := os.ReadFile("docs/ceph-tests.md")
	require.NoError(t, err)
	var sources strings.Builder
	for _, dir := range []string{".", "../conn"} {
		files, err := filepath.Glob(dir + "/*_test.go")
		require.NoError(t, err)
		for _, f := range files {
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			sources.Write(text)
		}
	}
	names := regexp.MustCompile("`(Test[A-Za-z]+)").FindAllStringSubmatch(string(table), -1)
	require.NotEmpty(t, names)
	for _, n := range names {
		require.Contains(t, sources.String(), "func "+n[1], "docs/ceph-tests.md names it")
	}
}
