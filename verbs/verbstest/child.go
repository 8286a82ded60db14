package verbstest

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// A subtest that kills a peer starts the test binary again with childEnv set:
// Run then plays the part that the variable names instead of running the suite.
const childEnv = "VERBSTEST_CHILD"

// addrEnv is what a child with roleDialer dials.
const addrEnv = "VERBSTEST_ADDR"

const listenLine = "verbstest listens on "

// The parts that a child plays.
const (
	roleDeaf   = "deaf"   // it listens and never accepts
	roleIdle   = "idle"   // it accepts, and takes what comes
	roleWriter = "writer" // it writes into our memory without end
	roleReader = "reader" // it reads our memory without end
	roleDialer = "dialer" // it connects to us, and writes into our memory without end
)

const childMemory = 1 << 20

// window is what private data says about memory that the peer may use.
type window struct {
	addr uint64
	rkey uint32
}

func (w window) encode() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, w.addr), w.rkey)
}

func decodeWindow(b []byte) window {
	if len(b) < 12 {
		return window{}
	}
	return window{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:])}
}

func (m *memory) window() window { return window{m.addr(0), m.mr.RKey()} }

// runChild is the process that will be killed.
func runChild(t *testing.T, c *Config, role string) {
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3) // whoever started us is gone
	}()
	e := newEnv(t, c)
	if role == roleDialer {
		x := e.end("child", e.dialer(), pairOpts{})
		mine := x.mem(childMemory, 0)
		fmt.Println("\n" + listenLine + "nothing")
		answer, err := x.qp.Connect(e.ctx, os.Getenv(addrEnv), driver.ConnParam{})
		require.NoError(t, err)
		x.stormOf(driver.OpWrite, mine, decodeWindow(answer.PrivateData))
	}
	l, addr := e.listen(e.acceptor())
	fmt.Println("\n" + listenLine + addr)
	if role == roleDeaf {
		select {}
	}
	r, err := l.Accept(e.ctx)
	require.NoError(t, err)
	x := e.end("child", e.acceptor(), pairOpts{depth: 64})
	mine := x.mem(childMemory, accRemote)
	inbox := x.mem(childMemory, accLocal)
	for range 64 {
		x.postRecv(verbs.RecvWR{SGEs: []verbs.SGE{inbox.sge(0, childMemory)}})
	}
	require.NoError(t, r.Accept(e.ctx, x.qp, driver.ConnParam{PrivateData: mine.window().encode()}))
	if role == roleIdle {
		for {
			if wc := x.rq.next(); wc.Status == driver.StatusSuccess {
				x.postRecv(verbs.RecvWR{SGEs: []verbs.SGE{inbox.sge(0, childMemory)}})
			}
		}
	}
	x.rq.good(0, driver.OpRecv) // the dialer speaks first
	theirs := decodeWindow(r.PrivateData())
	op := driver.OpWrite
	if role == roleReader {
		op = driver.OpRead
	}
	x.stormOf(op, mine, theirs)
}

// stormOf repeats op between our memory and the peer's until the process is
// killed.
func (x *end) stormOf(op verbs.Opcode, mine *memory, theirs window) {
	wr := signaled(0, op, mine.sge(0, childMemory))
	wr.RemoteAddr, wr.RKey = theirs.addr, theirs.rkey
	for {
		x.post(wr)
		if wc := x.sq.next(); wc.Status != driver.StatusSuccess {
			x.Fatalf("child: %v", wc.Status)
		}
	}
}

// child is a process that plays a part.
type child struct {
	e    *env
	cmd  *exec.Cmd
	addr string
	in   io.Closer
	out  chan struct{} // closed when its output has ended
}

// start starts a child and returns when it listens, or is about to dial. It is
// killed in the end.
func (e *env) start(role string, env ...string) *child {
	e.Helper()
	self, err := os.Executable()
	require.NoError(e, err)
	parts := strings.Split(e.cfg.name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	cmd := exec.Command(self, "-test.run="+strings.Join(parts, "/"), "-test.count=1", "-test.timeout=5m", "-test.v")
	cmd.Env = append(append(os.Environ(), childEnv+"="+role), env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(e, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(e, err)
	require.NoError(e, cmd.Start())
	c := &child{e: e, cmd: cmd, in: in, out: make(chan struct{})}
	e.later(phaseListener, c.kill)
	addr := make(chan string, 1)
	go func() { // ends with the child's output
		defer close(c.out)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			if a, ok := strings.CutPrefix(s.Text(), listenLine); ok {
				addr <- a
			} else {
				e.Logf("child: %s", s.Text())
			}
		}
	}()
	select {
	case c.addr = <-addr:
	case <-c.out:
		e.Fatal("the child ended before it listened")
	case <-e.ctx.Done():
		e.Fatal("the child does not listen")
	}
	return c
}

// kill kills the child the hard way, once.
func (c *child) kill() error {
	if c.cmd == nil {
		return nil
	}
	err := c.cmd.Process.Kill()
	<-c.out
	_ = c.cmd.Wait() // it was killed
	_ = c.in.Close()
	c.cmd = nil
	return err
}
