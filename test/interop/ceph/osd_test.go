package ceph

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/messenger"
)

// Message types of Ceph (CEPH_MSG_OSD_MAP, MSG_COMMAND, MSG_COMMAND_REPLY).
const (
	typeOSDMap       = 41
	typeCommand      = 97
	typeCommandReply = 98
)

// keepaliveTime is how long keepalives are exchanged with the OSD.
const keepaliveTime = time.Minute

// rawFSID is the cluster's id as it travels.
func rawFSID(t *testing.T, fsid string) []byte {
	t.Helper()
	raw, err := hex.DecodeString(strings.ReplaceAll(fsid, "-", ""))
	require.NoError(t, err)
	return raw
}

func appendString(dst []byte, s string) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(s)))
	return append(dst, s...)
}

// osd is osd.0, started and killed by the test.
type osd struct {
	t    *testing.T
	conf string
	cmd  *exec.Cmd
	out  bytes.Buffer
}

// startOSD starts osd.0 and waits until the cluster says that it is up. Its
// nonce is its process id, which is 2 in a namespace of its own: it is the same
// after a restart, as is its port.
func startOSD(t *testing.T, conf string) *osd {
	t.Helper()
	o := &osd{t: t, conf: conf}
	t.Cleanup(func() {
		if o.cmd != nil {
			o.kill()
		}
		if t.Failed() {
			t.Logf("osd.0:\n%s", o.out.Bytes())
		}
	})
	o.start()
	return o
}

func (o *osd) start() {
	o.t.Helper()
	before := o.dump().upFrom()
	o.cmd = exec.Command("unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
		"sh", "-c", `ceph-osd -c "$0" -i 0 -f & wait`, o.conf)
	o.cmd.Stdout, o.cmd.Stderr = &o.out, &o.out
	require.NoError(o.t, o.cmd.Start())
	require.Eventually(o.t, func() bool {
		d := o.dump()
		return d.OSDs[0].Up == 1 && d.upFrom() > before
	}, 2*patience, 200*time.Millisecond, "osd.0 does not come up")
}

// kill kills the daemon where it stands, and tells the cluster, which has nobody
// else to learn it from.
func (o *osd) kill() {
	require.NoError(o.t, o.cmd.Process.Kill())
	_ = o.cmd.Wait() // of a killed process
	o.cmd = nil
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "ceph", "-c", o.conf, "osd", "down", "0").CombinedOutput()
	require.NoError(o.t, err, "%s", out)
}

// osdDump is what "ceph osd dump" says.
type osdDump struct {
	Epoch int `json:"epoch"`
	OSDs  []struct {
		Up      int     `json:"up"`
		UpFrom  int     `json:"up_from"`
		Public  addrvec `json:"public_addrs"`
		Cluster addrvec `json:"cluster_addrs"`
	} `json:"osds"`
}

type addrvec struct {
	Addrs []struct {
		Type  string `json:"type"`
		Addr  string `json:"addr"`
		Nonce uint32 `json:"nonce"`
	} `json:"addrvec"`
}

func (d osdDump) upFrom() int { return d.OSDs[0].UpFrom }

// v2 is the address as the messenger takes it.
func (v addrvec) v2(t *testing.T) messenger.AddrVec {
	t.Helper()
	for _, a := range v.Addrs {
		if a.Type == "v2" {
			return messenger.AddrVec{{URL: "tcp://" + a.Addr, Nonce: a.Nonce}}
		}
	}
	t.Fatalf("no v2 address in %+v", v)
	return nil
}

func (o *osd) dump() (d osdDump) {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "ceph", "-c", o.conf, "osd", "dump", "--format", "json").Output()
	require.NoError(o.t, err)
	require.NoError(o.t, json.Unmarshal(out, &d))
	require.Len(o.t, d.OSDs, 1)
	return d
}

// command makes a message with a command for an OSD.
func command(t *testing.T, fsid, cmd string) *messenger.Message {
	t.Helper()
	q := messenger.NewMessage(typeCommand)
	q.Front = append(q.Front, rawFSID(t, fsid)...)
	q.Front = binary.LittleEndian.AppendUint32(q.Front, 1)
	q.Front = appendString(q.Front, cmd)
	return q
}

// ask sends a command to an OSD and returns what it answers.
func ask(t *testing.T, c *messenger.Connection, fsid, cmd string) []byte {
	t.Helper()
	q := command(t, fsid, cmd)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := c.Call(ctx, q) // matched by tid
	require.NoError(t, err)
	defer r.Release()
	require.EqualValues(t, typeCommandReply, r.Type)
	require.GreaterOrEqual(t, len(r.Front), 8)
	require.Zero(t, binary.LittleEndian.Uint32(r.Front), "the command failed: %q", r.Front[8:])
	require.NotNil(t, r.Data)
	out := make([]byte, r.Data.Len())
	r.Data.CopyTo(out)
	return out
}

func requireVersion(t *testing.T, answer []byte) {
	t.Helper()
	var v struct {
		Version string `json:"version"`
	}
	require.NoError(t, json.Unmarshal(answer, &v), "%q", answer)
	require.Contains(t, v.Version, ".")
	t.Logf("osd.0 is version %s", v.Version)
}

const versionCommand = `{"prefix": "version", "format": "json"}`

// recorder keeps both directions of connections, in the form of recproxy.
type recorder struct {
	dir  string // "": nothing is kept
	name string
	n    atomic.Int64 // connections
}

func newRecorder(name string) *recorder {
	return &recorder{dir: os.Getenv("ARGONAUT_CEPH_RECORD"), name: name}
}

func (r *recorder) dial(ctx context.Context, hostport string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", hostport)
	if err != nil {
		return nil, err
	}
	return r.record(c, "client", "server")
}

// listen has what is accepted recorded: there the peer is the client.
func (r *recorder) listen(ctx context.Context, hostport string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", hostport)
	return recordingListener{l, r}, err
}

type recordingListener struct {
	net.Listener
	r *recorder
}

func (l recordingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.r.record(c, "server", "client")
}

// record has files for what c writes and reads.
func (r *recorder) record(c net.Conn, out, in string) (_ net.Conn, err error) {
	if r.dir == "" {
		return c, nil
	}
	n := r.n.Add(1) - 1
	rc := &recorded{Conn: c}
	for half, f := range map[string]**os.File{out: &rc.out, in: &rc.in} {
		if *f, err = os.Create(filepath.Join(r.dir, fmt.Sprintf("%s-%03d-%s.bin", r.name, n, half))); err != nil {
			return nil, err
		}
	}
	return rc, nil
}

type recorded struct {
	net.Conn
	out, in *os.File
}

func (c *recorded) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if _, werr := c.out.Write(p[:n]); werr != nil {
		return n, werr
	}
	return n, err
}

func (c *recorded) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if _, werr := c.in.Write(p[:n]); werr != nil {
		return n, werr
	}
	return n, err
}

func (c *recorded) Close() error {
	_ = c.out.Close() // the golden test reads what is there
	_ = c.in.Close()
	return c.Conn.Close()
}

// The monitor sends the OSD map to who subscribes to it.
func TestMonitorSendsOSDMap(t *testing.T) {
	mon, fsid, _ := environment(t)
	m, d := start(t, messenger.Config{Name: messenger.EntityName{Type: messenger.Client, Num: -1}, DialStream: newRecorder("ours-mon-osdmap").dial})
	c := connect(t, m, mon)
	q := messenger.NewMessage(typeMonSubscribe)
	q.Version, q.CompatVersion = 3, 1
	q.Front = binary.LittleEndian.AppendUint32(q.Front, 1)
	q.Front = appendString(q.Front, "osdmap")
	q.Front = binary.LittleEndian.AppendUint64(q.Front, 0) // the newest
	q.Front = append(q.Front, 0)                           // and all that follow
	q.Front = appendString(q.Front, "here")                // our host
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, c.Send(ctx, q))
	r := d.next(t, typeOSDMap)
	defer r.Release()
	require.True(t, bytes.HasPrefix(r.Front, rawFSID(t, fsid)), "the map names the cluster")
	require.Greater(t, len(r.Front), 200, "and holds a map")
}

// An OSD takes us for a client: handshake, a command and its answer, and
// keepalives for a minute.
func TestOSDSession(t *testing.T) {
	_, fsid, conf := environment(t)
	o := startOSD(t, conf)
	rec := newRecorder("osd-command")
	m, _ := start(t, messenger.Config{Name: messenger.EntityName{Type: messenger.Client, Num: -1}, DialStream: rec.dial})
	p := messenger.LossyClient()
	p.Supported = cephFeatures
	m.SetPolicy(messenger.OSD, p)
	c, err := m.ConnectTo(messenger.OSD, o.dump().OSDs[0].Public.v2(t))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, c.Ready(ctx))
	peer, addrs, features := c.Peer()
	t.Logf("%v at %v, common features %#x", peer, addrs, features)
	require.Equal(t, messenger.EntityName{Type: messenger.OSD, Num: 0}, peer)
	requireVersion(t, ask(t, c, fsid, versionCommand))

	const every = 2 * time.Second
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := c.LastKeepaliveAck()
	for end := time.Now().Add(keepaliveTime); time.Now().Before(end); {
		<-tick.C
		c.SendKeepalive()
		require.Eventually(t, func() bool { return c.LastKeepaliveAck().After(last) }, patience, time.Millisecond)
		last = c.LastKeepaliveAck()
	}
	requireVersion(t, ask(t, c, fsid, versionCommand)) // the same session
	m.MarkDownAll()
}

// As another OSD we have a lossless session, which comes back by itself when the
// daemon was killed and started again, on the same Connection. The daemon has
// lost the session and says so: what waited for it is lost, and we are told.
func TestOSDRestart(t *testing.T) {
	_, fsid, conf := environment(t)
	o := startOSD(t, conf)
	m, d := start(t, messenger.Config{
		Name: messenger.EntityName{Type: messenger.OSD, Num: 1}, DialStream: newRecorder("osd-restart").dial,
	})
	p := messenger.LosslessPeer()
	p.Supported = cephFeatures
	m.SetPolicy(messenger.OSD, p)
	addrs := o.dump().OSDs[0].Cluster.v2(t)
	c, err := m.ConnectTo(messenger.OSD, addrs)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, c.Ready(ctx))
	requireVersion(t, ask(t, c, fsid, versionCommand))

	for i := range 2 {
		o.kill()
		waits := make(chan error, 1)
		go func() { // a call while nobody is there
			ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
			defer cancel()
			q := command(t, fsid, versionCommand)
			r, err := c.Call(ctx, q)
			if err != nil {
				q.Release()
			} else {
				r.Release()
			}
			waits <- err
		}()
		o.start()
		require.Equal(t, addrs, o.dump().OSDs[0].Cluster.v2(t), "the same address and nonce: the same peer")
		require.ErrorIs(t, <-waits, messenger.ErrReset)
		require.Eventually(t, func() bool { return d.remoteResets.Load() == int64(i+1) }, patience, time.Millisecond)
		requireVersion(t, ask(t, c, fsid, versionCommand))
	}
	require.Zero(t, d.resets.Load(), "the Connection lives")
}
