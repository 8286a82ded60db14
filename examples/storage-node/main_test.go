package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/argonaut-rdma/argonaut/test/env"
)

// TestMain turns the test binary into the program itself where a test has started it as such.
func TestMain(m *testing.M) {
	if os.Getenv("STORAGE_NODE_TEST_RUN") != "" {
		main()
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"))
}

// adapter is the device that the tests run on: the one in software, or the RDMA device that the environment names.
var adapter = func() string {
	if d := env.Device(); d != "" {
		return d
	}
	return "iwarp"
}()

// devices that the tests run over. (What they do over TCP is no different for the RDMA device.)
var devices = func() []string {
	if env.Device() != "" {
		return []string{adapter}
	}
	return []string{adapter, "tcp"}
}()

// patience is how long a test waits for another process to do what it certainly does.
const patience = 30 * time.Second

// rounds is how often a test repeats what it does: few, or what the environment says.
func rounds(t *testing.T, few int) int {
	v := os.Getenv("ARGONAUT_KILL_ROUNDS")
	if v == "" {
		return few
	}
	n, err := strconv.Atoi(v)
	require.NoError(t, err)
	return n
}

// program makes a command that runs this program.
func command(args ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), "STORAGE_NODE_TEST_RUN=1")
	return cmd
}

// result is how a run of the program ended.
type result struct {
	status         int
	stdout, stderr string
}

// exec1 runs the program to its end, inside the test.
func exec1(stdin io.Reader, args ...string) result {
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	var out, errs bytes.Buffer
	status := run(context.Background(), args, stdin, &out, &errs)
	return result{status, out.String(), errs.String()}
}

// ok runs the program, which must succeed, and returns what it printed.
func ok(t *testing.T, stdin io.Reader, args ...string) string {
	t.Helper()
	r := exec1(stdin, args...)
	require.Zero(t, r.status, "%q: %s", args, r.stderr)
	return r.stdout
}

// fails runs the program, which must fail, and returns what it said.
func fails(t *testing.T, stdin io.Reader, args ...string) string {
	t.Helper()
	r := exec1(stdin, args...)
	require.Equal(t, exitError, r.status, "%q: %s%s", args, r.stdout, r.stderr)
	require.Contains(t, r.stderr, "storage-node: error: ", "%q", args)
	require.NotContains(t, r.stderr, "panic", "%q", args)
	require.NotContains(t, r.stderr, "goroutine ", "%q", args)
	return r.stderr
}

// misused runs the program with arguments that it does not take, and returns what it said.
func misused(t *testing.T, args ...string) string {
	t.Helper()
	r := exec1(nil, args...)
	require.Equal(t, exitUsage, r.status, "%q: %s%s", args, r.stdout, r.stderr)
	require.Contains(t, r.stderr, "storage-node: error: ", "%q", args)
	return r.stderr
}

// process is a node in a process of its own.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	addr string // of its first address

	mu    sync.Mutex
	lines []string // of its log
	more  chan struct{}
	end   chan struct{} // closed when its log has ended
}

// startNode starts a node and waits until it listens.
func startNode(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	return startProcess(t, command(append([]string{"serve", "--data", dir}, args...)...))
}

func startProcess(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, more: make(chan struct{}, 1), end: make(chan struct{})}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	log, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	go func() { // ends with the process
		defer close(p.end)
		s := bufio.NewScanner(log)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			p.mu.Lock()
			p.lines = append(p.lines, s.Text())
			p.mu.Unlock()
			select {
			case p.more <- struct{}{}:
			default:
			}
		}
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("log of the node:\n%s", p.log())
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		require.NoError(t, err, "the node did not start: %s", p.waitLog())
	}
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), "listening ")
	require.True(t, ok, line)
	p.addr = addr
	go io.Copy(io.Discard, out)
	return p
}

// log is what the node has logged so far.
func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// waitLog is all that the node logged, after its end.
func (p *process) waitLog() string {
	<-p.end
	return p.log()
}

// kill ends the node with SIGKILL, if it still runs.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		p.cmd.Process.Kill()
		<-p.end
		p.cmd.Wait()
	}
}

// lineAfter waits for a line of the log, from line n on, that re matches, and returns its groups.
func (p *process) lineAfter(n int, re *regexp.Regexp) []string {
	p.t.Helper()
	timeout := time.After(patience)
	for {
		p.mu.Lock()
		for ; n < len(p.lines); n++ {
			if m := re.FindStringSubmatch(p.lines[n]); m != nil {
				p.mu.Unlock()
				return m
			}
		}
		p.mu.Unlock()
		select {
		case <-p.more:
		case <-p.end:
			require.Fail(p.t, "the node has ended", p.log())
		case <-timeout:
			require.Fail(p.t, "the node does not log "+re.String(), p.log())
		}
	}
}

// stat asks the node for a number of its report, as a client does.
func (p *process) stat() map[string]string {
	p.t.Helper()
	out := ok(p.t, nil, to(p, "stat")...)
	m := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "  ")
		m[name] = strings.TrimSpace(value)
	}
	return m
}

// randomFile writes a file of n random bytes.
func randomFile(t *testing.T, n int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "random")
	f, err := os.Create(path)
	require.NoError(t, err)
	r := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16), 5})
	_, err = io.CopyN(f, r, n)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return path
}

// sameFiles compares two files, which may be larger than memory.
func sameFiles(t *testing.T, a, b string) {
	t.Helper()
	fa, err := os.Open(a)
	require.NoError(t, err)
	defer fa.Close()
	fb, err := os.Open(b)
	require.NoError(t, err)
	defer fb.Close()
	sameBytes(t, fa, fb)
}

// sameBytes compares what two readers have.
func sameBytes(t *testing.T, a, b io.Reader) {
	t.Helper()
	pa, pb := make([]byte, 1<<20), make([]byte, 1<<20)
	for off := int64(0); ; {
		na, erra := io.ReadFull(a, pa)
		nb, errb := io.ReadFull(b, pb)
		require.Equal(t, na, nb, "different lengths")
		require.True(t, bytes.Equal(pa[:na], pb[:nb]), "they differ behind byte %d", off)
		off += int64(na)
		require.Equal(t, erra, errb)
		if erra != nil {
			return
		}
	}
}

func to(p *process, args ...string) []string {
	return append([]string{args[0], "--server", p.addr, "--device", p.device()}, args[1:]...)
}

// device is what the node runs on.
func (p *process) device() string {
	if strings.HasPrefix(p.addr, "iwarp://") {
		return "iwarp"
	}
	return adapter
}

func listen(device string) []string {
	return []string{"--device", device, "--listen", env.ListenAddr(), "--arena", "64MiB"}
}
