package inspect_test

import (
	"encoding/json"
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
