package iwarp

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// capture writes the bytes of one connection as packets of an imaginary Ethernet, for tools that read pcap files.
type capture struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	seq  [2]uint32 // next sequence number, by direction: 0 is from the initiator
	port [2]uint16
	at   uint32
}

const (
	tcpSYN = 0x02
	tcpPSH = 0x08
	tcpACK = 0x10
	tcpFIN = 0x01
)

func newCapture() *capture {
	c := &capture{port: [2]uint16{40000, 20079}, seq: [2]uint32{1000, 2000}}
	for _, v := range []any{uint32(0xa1b2c3d4), uint16(2), uint16(4), uint32(0), uint32(0), uint32(1 << 18), uint32(1)} { // Ethernet
		_ = binary.Write(&c.buf, binary.LittleEndian, v)
	}
	c.packet(0, tcpSYN, nil)
	c.packet(1, tcpSYN|tcpACK, nil)
	c.packet(0, tcpACK, nil)
	return c
}

// packet adds one TCP segment; its sequence numbers are the capture's own.
func (c *capture) packet(dir int, flags byte, payload []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ip := make([]byte, 54, 54+len(payload))
	copy(ip, []byte{2, 0, 0, 0, 0, byte(2 - dir), 2, 0, 0, 0, 0, byte(1 + dir), 8, 0, 0x45, 0})
	binary.BigEndian.PutUint16(ip[16:], uint16(40+len(payload)))
	copy(ip[22:], []byte{64, 6, 0, 0, 10, 0, 0, byte(1 + dir), 10, 0, 0, byte(2 - dir)})
	binary.BigEndian.PutUint16(ip[34:], c.port[dir])
	binary.BigEndian.PutUint16(ip[36:], c.port[1-dir])
	binary.BigEndian.PutUint32(ip[38:], c.seq[dir])
	if flags&tcpACK != 0 {
		binary.BigEndian.PutUint32(ip[42:], c.seq[1-dir])
	}
	ip[46], ip[47] = 0x50, flags
	binary.BigEndian.PutUint16(ip[48:], 0xffff)
	ip = append(ip, payload...)
	c.at++
	for _, v := range []uint32{c.at / 1000, c.at % 1000 * 1000, uint32(len(ip)), uint32(len(ip))} {
		_ = binary.Write(&c.buf, binary.LittleEndian, v)
	}
	c.buf.Write(ip)
	c.seq[dir] += uint32(len(payload))
	if flags&(tcpSYN|tcpFIN) != 0 {
		c.seq[dir]++
	}
}

// taped is a connection whose writes are captured, in pieces of a packet.
type taped struct {
	plainConn
	c   *capture
	dir int
}

const packetMax = 1448

func (x taped) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), packetMax)
		x.c.packet(x.dir, tcpPSH|tcpACK, rest[:n])
		rest = rest[n:]
	}
	return x.plainConn.Write(p)
}

func (x taped) CloseWrite() error {
	x.c.packet(x.dir, tcpFIN|tcpACK, nil)
	return x.plainConn.CloseWrite()
}

type tapedListener struct {
	net.Listener
	c *capture
}

func (l tapedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return taped{plainConn{c}, l.c, 1}, nil
}

func tshark(t *testing.T) string {
	path, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("ARGONAUT_REQUIRE_TSHARK") == "1" {
			t.Fatalf("ARGONAUT_REQUIRE_TSHARK is set, but: %v", err)
		}
		t.Skipf("tshark is not installed (apt-get install tshark): %v", err)
	}
	return path
}

// What a strict connection puts on the wire is what an independent implementation of the protocols reads.
func TestWiresharkDecodes(t *testing.T) {
	path := tshark(t)
	for _, rev := range []int{1, 2} {
		t.Run([]string{"", "MPA v1", "MPA v2"}[rev], func(t *testing.T) { decodes(t, path, rev) })
	}
}

func decodes(t *testing.T, path string, rev int) {
	tape := newCapture()
	cfg := Config{
		Strict: true, MPARevision: rev,
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := wrapDial(ctx, addr)
			if err != nil {
				return nil, err
			}
			return taped{c.(plainConn), tape, 0}, nil
		},
		Listen: func(ctx context.Context, addr string) (net.Listener, error) {
			var lc net.ListenConfig
			l, err := lc.Listen(ctx, "tcp", addr)
			return tapedListener{l, tape}, err
		},
	}
	a, b := newEnd(t, endConfig{cfg: cfg}), newEnd(t, endConfig{cfg: cfg})
	a.param.PrivateData, b.param.PrivateData = []byte("hello"), []byte("welcome back")
	connect(t, a, b, "127.0.0.1:0")
	_, am := a.mem(64<<10, driver.AccessLocalWrite)
	_, bm := b.mem(64<<10, driver.AccessLocalWrite|driver.AccessRemoteWrite|driver.AccessRemoteRead)
	scoped, err := b.pd.RegScoped(bm, 0, 4096, driver.AccessRemoteRead, b.qp)
	require.NoError(t, err)

	sizes := []int{0, 1, 2, 3, 4, 64, 1000, 1500, 5000, 40000}
	for i, n := range sizes {
		b.recv(uint64(i), sgeOf(bm, 0, 64<<10))
		flags := driver.SendSignaled
		if i%2 == 1 {
			flags |= driver.SendSolicited
		}
		a.post(driver.SendWR{Opcode: driver.OpSend, Flags: flags, SGEs: []driver.SGE{sgeOf(am, 0, n)}},
			driver.SendWR{Opcode: driver.OpWrite, SGEs: []driver.SGE{sgeOf(am, 0, n)}, RemoteAddr: bm.Addr(), RKey: bm.RKey()},
			driver.SendWR{Opcode: driver.OpRead, Flags: driver.SendSignaled, SGEs: []driver.SGE{sgeOf(am, 0, n)}, RemoteAddr: bm.Addr(), RKey: bm.RKey()})
		a.waitOK(a.scq, 2)
		b.waitOK(b.rcq, 1)
	}
	b.recv(100)
	b.recv(101)
	a.post(driver.SendWR{Opcode: driver.OpSendWithInv, InvalidateRKey: scoped.RKey()},
		driver.SendWR{Opcode: driver.OpSendWithInv, Flags: driver.SendSolicited, InvalidateRKey: bm.RKey()}) // refused: Terminate
	b.waitOK(b.rcq, 1)
	require.Equal(t, driver.EventQPFatal, a.event().Type)
	require.NoError(t, scoped.Deregister())
	require.NoError(t, a.qp.Destroy())
	require.NoError(t, b.qp.Destroy())
	for _, e := range []*end{a, b} { // the last words are out
		<-e.qp.(*queuePair).finished
	}

	file := filepath.Join(t.TempDir(), "iwarp.pcap")
	require.NoError(t, os.WriteFile(file, tape.buf.Bytes(), 0o600))
	run := func(args ...string) string {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, path, append([]string{"-r", file, "-2",
			// What guesses at the user's bytes.
			"--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct", "--disable-protocol", "nvme-rdma"}, args...)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		require.NoError(t, err, "%s", stderr.String())
		return string(out)
	}
	verbose := run("-V", "-O", "iwarp_mpa,iwarp_ddp_rdmap")
	for _, bad := range []string{"Malformed", "Bad CRC", "Bad length", "reassembly error", "Unknown"} {
		require.Empty(t, firstLines(verbose, bad))
	}
	require.Contains(t, verbose, "Request frame header")
	require.Contains(t, verbose, "Reply frame header")

	// Every FPDU is there, with its opcode, and its checksum is good.
	ops := map[string]int{}
	for _, line := range strings.Fields(run("-T", "fields", "-e", "iwarp_rdma.opcode", "-Y", "iwarp_ddp", "-E", "separator=,")) {
		for op := range strings.SplitSeq(line, ",") {
			ops[strings.TrimPrefix(op, "0x")]++
		}
	}
	t.Logf("opcodes decoded: %v", ops)
	require.Equal(t, len(sizes), ops["01"], "READ requests: %v", ops)
	for _, op := range []string{"00", "02", "03", "05", "04", "06", "07"} {
		require.NotZero(t, ops[op], "opcode %s: %v", op, ops)
	}
	require.Equal(t, 1, ops["07"], "Terminate: %v", ops)
	fpdus := 0
	for _, n := range ops {
		fpdus += n
	}
	require.Equal(t, fpdus, strings.Count(verbose, "(Good CRC32)"), "%s", firstLines(verbose, "CRC"))
}

func firstLines(s, with string) string {
	var out []string
	for line := range strings.Lines(s) {
		if strings.Contains(line, with) && len(out) < 20 {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}
