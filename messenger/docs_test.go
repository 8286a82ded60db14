package messenger

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// cephTests are the tests of Ceph's messenger that the table has a row for.
var cephTests = []string{
	"ConnectionRaceTest", "ConnectionRaceReuseBannerTest", "MissingServerIdenTest", "MissingServerIdenTest2", "ReconnectTest",
	"ReconnectRaceTest", "SimpleTest", "SimpleMsgr2Test", "FeatureTest", "TimeoutTest", "StatefulTest", "StatelessTest",
	"ClientStandbyTest", "AnonTest", "AuthTest", "MessageTest", "SyntheticStressTest", "SyntheticStressTest1",
	"SyntheticInjectTest", "SyntheticInjectTest5", "MarkdownTest", "test_frames_v2", "test_comp_registry",
	"test_async_networkstack", "test_async_driver", "test_userspace_event",
}

// The table of Ceph's tests has a row for each, and names tests, and scripts, that
// exist.
func TestTableOfCephsTests(t *testing.T) {
	text, err := os.ReadFile("docs/ceph-tests.md")
	require.NoError(t, err)
	table, _, _ := strings.Cut(string(text), "## The injection options")
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
	rows := map[string]string{} // what is ours, by Ceph's name
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) == 5 {
			for _, name := range strings.Split(cells[1], ",") {
				rows[strings.TrimSuffix(strings.TrimSpace(name), " to 4")] = cells[3]
			}
		}
	}
	for _, name := range cephTests {
		require.Regexp(t, "`|^ none: ", rows[name], "the row of %s", name)
	}
	for _, quoted := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(table, -1) {
		name, sub, _ := strings.Cut(quoted[1], "/")
		switch {
		case regexp.MustCompile("^Test[A-Za-z0-9]+$").MatchString(name):
			require.True(t, strings.Contains(sources.String(), "func "+name+"("), "there is no %s", name)
			if sub != "" {
				require.True(t, strings.Contains(sources.String(), `"`+sub+`"`), "there is no %s/%s", name, sub)
			}
		case name == "": // a further subtest
			require.True(t, strings.Contains(sources.String(), `"`+sub+`"`), "there is no %s/%s", name, sub)
		case regexp.MustCompile("^s[0-9]+_").MatchString(name):
			require.FileExists(t, "internal/session/testdata/"+name+".txt")
		case name == "testdata":
			found, err := filepath.Glob(quoted[1] + ".txt")
			require.NoError(t, err)
			require.NotEmpty(t, found, quoted[1])
		}
	}
}
