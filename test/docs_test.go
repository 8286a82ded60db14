package test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the troubleshooting guide says is reproduced by a test is: the tests that
// it names are there.
func TestGuideNamesTests(t *testing.T) {
	guide, err := os.ReadFile("../docs/troubleshooting.md")
	require.NoError(t, err)
	names := regexp.MustCompile("`(Test[A-Za-z]+)`").FindAllStringSubmatch(string(guide), -1)
	require.NotEmpty(t, names)
	var tests strings.Builder
	for _, dir := range []string{"../buffer", "../buffer/*", "../verbs", "../verbs/*", "../conn", "../messenger", "fault"} {
		files, err := filepath.Glob(dir + "/*_test.go")
		require.NoError(t, err)
		for _, f := range files {
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			tests.Write(b)
		}
	}
	for _, n := range names {
		require.True(t, strings.Contains(tests.String(), "func "+n[1]+"("), "the guide names a test that is not there: %s", n[1])
	}
}
