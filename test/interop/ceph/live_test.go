package ceph

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/messenger"
)

// Message types of Ceph (CEPH_MSG_MON_* and MSG_MON_*).
const (
	typeMonMap       = 4
	typeMonGetMap    = 5
	typeMonSubscribe = 15
	typeMonCommand   = 50
)

// cephFeatures is what Ceph 16.2's own programs offer each other. The payloads
// stay opaque here, so offering their encodings costs nothing.
const cephFeatures = 0x3f01cfbffffdffff

const patience = 30 * time.Second

// environment is what run tells.
func environment(t *testing.T) (mon, fsid, conf string) {
	t.Helper()
	mon = os.Getenv("ARGONAUT_CEPH_MON")
	if mon == "" {
		t.Skip("no Ceph monitor: run starts one and sets ARGONAUT_CEPH_MON")
	}
	return mon, os.Getenv("ARGONAUT_CEPH_FSID"), os.Getenv("ARGONAUT_CEPH_CONF")
}

type dispatcher struct {
	messenger.BaseDispatcher
	got                  chan *messenger.Message
	resets, remoteResets atomic.Int64
}

func (d *dispatcher) HandleReset(*messenger.Connection)       { d.resets.Add(1) }
func (d *dispatcher) HandleRemoteReset(*messenger.Connection) { d.remoteResets.Add(1) }

func (d *dispatcher) Dispatch(_ context.Context, m *messenger.Message) bool {
	d.got <- m
	return true
}

func (d *dispatcher) next(t *testing.T, want uint16) *messenger.Message {
	t.Helper()
	for {
		select {
		case m := <-d.got:
			t.Logf("received type %d, front %d bytes", m.Type, len(m.Front))
			if m.Type == want {
				return m
			}
			m.Release()
		case <-time.After(patience):
			t.Fatalf("no message of type %d within %v", want, patience)
		}
	}
}

func start(t *testing.T, cfg messenger.Config) (*messenger.Messenger, *dispatcher) {
	t.Helper()
	arena, err := buffer.New(buffer.Config{Budget: 32 << 20})
	require.NoError(t, err)
	cfg.Arena = arena
	m, err := messenger.New(cfg)
	require.NoError(t, err)
	d := &dispatcher{got: make(chan *messenger.Message, 64)}
	m.AddDispatcher(d)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, m.Shutdown(ctx))
		for len(d.got) > 0 {
			(<-d.got).Release()
		}
		require.NoError(t, arena.Close(ctx))
	})
	return m, d
}

func connect(t *testing.T, m *messenger.Messenger, mon string) *messenger.Connection {
	t.Helper()
	p := messenger.LossyClient()
	p.Supported = cephFeatures
	m.SetPolicy(messenger.Mon, p)
	a, err := messenger.ParseAddr(mon)
	require.NoError(t, err)
	c, err := m.ConnectTo(messenger.Mon, messenger.AddrVec{a})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, c.Ready(ctx))
	return c
}

// paxosHeader opens the monitor's own messages: a version, and two fields of
// forwarded ones.
func paxosHeader(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, 0)
	dst = binary.LittleEndian.AppendUint16(dst, 0xffff)
	return binary.LittleEndian.AppendUint64(dst, 0)
}

func TestMonitorHandshakeAndMap(t *testing.T) {
	mon, fsid, _ := environment(t)
	m, d := start(t, messenger.Config{Name: messenger.EntityName{Type: messenger.Client, Num: -1}, DialStream: newRecorder("ours-mon-map").dial})
	c := connect(t, m, mon)
	peer, addrs, features := c.Peer()
	t.Logf("%v at %v, common features %#x", peer, addrs, features)
	require.Equal(t, messenger.EntityName{Type: messenger.Mon, Num: 0}, peer)
	require.False(t, c.CanGrant(), "Ceph knows nothing of our grants")

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, c.Send(ctx, messenger.NewMessage(typeMonGetMap)))
	r := d.next(t, typeMonMap)
	defer r.Release()
	require.Contains(t, string(r.Front), string(rawFSID(t, fsid)), "the map names the cluster")

	c.SendKeepalive()
	require.Eventually(t, func() bool { return !c.LastKeepaliveAck().IsZero() }, patience, 10*time.Millisecond)
}

func TestMonitorCommand(t *testing.T) {
	mon, fsid, _ := environment(t)
	m, _ := start(t, messenger.Config{Name: messenger.EntityName{Type: messenger.Client, Num: -1}, DialStream: newRecorder("ours-mon-command").dial})
	c := connect(t, m, mon)
	cmd := `{"prefix": "status", "format": "json"}`
	q := messenger.NewMessage(typeMonCommand)
	q.Front = paxosHeader(q.Front)
	q.Front = append(q.Front, rawFSID(t, fsid)...)
	q.Front = binary.LittleEndian.AppendUint32(q.Front, 1)
	q.Front = appendString(q.Front, cmd)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := c.Call(ctx, q) // matched by tid
	require.NoError(t, err)
	defer r.Release()
	require.NotNil(t, r.Data, "the reply's output is in its data segment; front %q", r.Front)
	out := make([]byte, r.Data.Len())
	r.Data.CopyTo(out)
	var status struct {
		FSID   string `json:"fsid"`
		Health struct {
			Status string `json:"status"`
		} `json:"health"`
	}
	require.NoError(t, json.Unmarshal(out, &status))
	require.Equal(t, fsid, status.FSID)
	t.Logf("status of %s: %s", status.FSID, status.Health.Status)
}

func TestCephProgramReachesUs(t *testing.T) {
	_, _, conf := environment(t)
	m, d := start(t, messenger.Config{Name: messenger.EntityName{Type: messenger.Mon, Num: 0}, ListenStream: newRecorder("ceph-ours").listen})
	p := messenger.StatelessServer()
	p.Supported = cephFeatures
	m.SetPolicy(messenger.Client, p)
	require.NoError(t, m.Bind(t.Context(), messenger.AddrVec{{URL: "tcp://127.0.0.1:0", Nonce: 0}}))
	hostport := m.Addrs()[0].HostPort()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "ceph", "-c", conf, "--mon-host", "v2:"+hostport, "-s")
	require.NoError(t, cmd.Start())
	get := d.next(t, typeMonGetMap)
	peer, addrs, _ := get.Conn.Peer()
	t.Logf("%v at %v", peer, addrs)
	require.Equal(t, messenger.Client, peer.Type)
	require.Empty(t, get.Front, "it asks for the map, and says nothing else")
	get.Release()
	sub := d.next(t, typeMonSubscribe)
	defer sub.Release()
	s, err := decodeSubscription(sub.Front)
	require.NoError(t, err)
	t.Logf("%s subscribes to %v", s.host, s.what)
	require.Contains(t, s.what, "monmap")
	host, err := os.Hostname()
	require.NoError(t, err)
	require.Equal(t, host, s.host)
	require.NoError(t, cmd.Process.Kill()) // it waits for a map that we do not have
	cmd.Wait()
}
