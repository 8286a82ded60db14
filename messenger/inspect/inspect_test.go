package inspect_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/messenger/inspect"
	"github.com/argonaut-rdma/argonaut/messenger/messengertest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"))
}

func TestHandler(t *testing.T) {
	cl := messengertest.New(t, messengertest.Config{Setup: func(n *messengertest.Node) {
		n.SetPolicy(messenger.OSD, messenger.LosslessPeer())
	}})
	c, err := cl.Nodes[0].ConnectTo(messenger.OSD, cl.Nodes[1].Addrs())
	require.NoError(t, err)
	require.NoError(t, c.Ready(t.Context()))
	cl.Net.Split([]string{cl.Nodes[0].Host}, []string{cl.Nodes[1].Host})
	m := messenger.NewMessage(1)
	m.Front = append(m.Front, "kept"...)
	require.NoError(t, c.Send(t.Context(), m))
	require.Eventually(t, func() bool { return c.Stats().UnackedMessages == 1 }, 10*time.Second, time.Millisecond)

	h := inspect.Handler(cl.Nodes[0].Messenger)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	require.Equal(t, http.StatusOK, w.Code)
	var got messenger.Inspection
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
	require.Equal(t, "osd.0", got.Name)
	require.Len(t, got.Connections, 1)
	require.Equal(t, "osd.1", got.Connections[0].Peer)
	require.Equal(t, "open", got.Connections[0].State)
	require.Equal(t, "lossless_peer", got.Connections[0].Policy)
	require.EqualValues(t, 4, got.Connections[0].Stats.UnackedBytes)
	require.NotZero(t, got.Memory.Total)

	w = httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", nil))
	require.Equal(t, http.StatusMethodNotAllowed, w.Code)
}

// The query chooses the connections, and what it does not know it refuses.
func TestQuery(t *testing.T) {
	cl := messengertest.New(t, messengertest.Config{Nodes: 4})
	m := cl.Nodes[0].Messenger
	for _, to := range cl.Nodes[1:] {
		c, err := m.ConnectTo(messenger.OSD, to.Addrs())
		require.NoError(t, err)
		require.NoError(t, c.Ready(t.Context()))
	}
	h := inspect.Handler(m)
	ask := func(query string, code int) (in messenger.Inspection) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?"+query, nil))
		require.Equal(t, code, w.Code, w.Body.String())
		if code == http.StatusOK {
			require.Equal(t, "application/json", w.Header().Get("Content-Type"))
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &in))
		}
		return in
	}
	all := ask("", http.StatusOK)
	require.Len(t, all.Connections, 3)
	require.Zero(t, all.Next)
	first := ask("limit=2", http.StatusOK)
	require.Equal(t, all.Connections[1].ID, first.Next)
	rest := ask(fmt.Sprintf("limit=2&after=%d", first.Next), http.StatusOK)
	require.Len(t, rest.Connections, 1)
	require.Equal(t, all.Connections[2].ID, rest.Connections[0].ID)
	require.Zero(t, rest.Next)
	require.Equal(t, "osd.2", ask("peer=osd.2", http.StatusOK).Connections[0].Peer)
	require.Len(t, ask("peer=osd&state=open", http.StatusOK).Connections, 3)
	require.Empty(t, ask("state=standby", http.StatusOK).Connections)
	for _, bad := range []string{
		"limit=0", "limit=-1", "limit=1001", "limit=x", "limit=", "limit=1&limit=2", "after=-1", "after=x", "state=asleep", "secrets=1", "limit=%zz",
	} {
		ask(bad, http.StatusBadRequest)
	}
}

// slow is who reads the answer slowly: while it is written, nothing is locked.
type slow struct {
	*httptest.ResponseRecorder
	meanwhile func()
}

func (w *slow) Write(b []byte) (int, error) {
	w.meanwhile()
	return w.ResponseRecorder.Write(b)
}

func TestSlowReader(t *testing.T) {
	cl := messengertest.New(t, messengertest.Config{Setup: func(n *messengertest.Node) { n.AddDispatcher(answerer{}) }})
	c, err := cl.Nodes[0].ConnectTo(messenger.OSD, cl.Nodes[1].Addrs())
	require.NoError(t, err)
	require.NoError(t, c.Ready(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	writes := 0
	w := &slow{ResponseRecorder: httptest.NewRecorder(), meanwhile: func() {
		writes++
		r, err := c.Call(ctx, messenger.NewMessage(1))
		require.NoError(t, err)
		r.Release()
		require.Len(t, cl.Nodes[0].Inspect(messenger.InspectQuery{}).Connections, 1)
	}}
	inspect.Handler(cl.Nodes[0].Messenger).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	require.Equal(t, http.StatusOK, w.Code)
	require.Positive(t, writes)
}

// answerer answers calls.
type answerer struct{ messenger.BaseDispatcher }

func (answerer) Dispatch(ctx context.Context, m *messenger.Message) bool {
	defer m.Release()
	r := messenger.NewMessage(m.Type)
	if m.Reply(ctx, r) != nil {
		r.Release()
	}
	return true
}

func TestProbes(t *testing.T) {
	cl := messengertest.New(t, messengertest.Config{})
	m := cl.Nodes[0].Messenger
	code := func(h http.Handler) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		var got messenger.Health
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
		require.Equal(t, m.Health(), got)
		return w.Code
	}
	require.Equal(t, http.StatusOK, code(inspect.Live(m)))
	require.Equal(t, http.StatusOK, code(inspect.Ready(m)))
	require.NoError(t, m.Drain(t.Context()))
	require.Equal(t, http.StatusOK, code(inspect.Live(m)))
	require.Equal(t, http.StatusServiceUnavailable, code(inspect.Ready(m)))
}
