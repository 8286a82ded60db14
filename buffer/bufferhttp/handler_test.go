package bufferhttp

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

func do(t *testing.T, h http.Handler, method, target string, code int) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, nil))
	require.Equal(t, code, w.Code)
	b, err := io.ReadAll(w.Body)
	require.NoError(t, err)
	return string(b)
}

func TestHandler(t *testing.T) {
	ctx := context.Background()
	dev, err := iwarp.Open(iwarp.Config{})
	require.NoError(t, err)
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	a, err := buffer.New(buffer.Config{Budget: 4 << 20, RegionSize: 2 << 20})
	require.NoError(t, err)
	require.NoError(t, a.Attach(ctx, pd))
	h := Handler(a)

	b, err := a.Get(ctx, 5000, a.Owner("the culprit", 0))
	require.NoError(t, err)
	text := do(t, h, "GET", "/x", 200)
	require.Contains(t, text, `"the culprit" holds 8192 bytes`)
	require.Contains(t, text, "tracing is off")
	require.Contains(t, text, "region 1, live")
	require.Contains(t, text, "iwarp: PD #1")
	b.Release()

	require.Equal(t, "trace=true\n", do(t, h, "POST", "/x?trace=1", 200))
	b, err = a.Get(ctx, 5000, a.Owner("the culprit", 0))
	require.NoError(t, err)
	var reports []buffer.Report
	require.NoError(t, json.Unmarshal([]byte(do(t, h, "GET", "/x?format=json", 200)), &reports))
	require.Len(t, reports, 1)
	r := reports[0]
	require.True(t, r.Tracing)
	require.True(t, r.Complete)
	require.Len(t, r.Holders, 1)
	require.Contains(t, r.Holders[0].Stack, "TestHandler")
	require.EqualValues(t, 8192, r.Stats.Held)
	require.Len(t, r.Regions, 2)
	require.Equal(t, "iwarp", r.Regions[0].Keys[0].Device)
	require.NotZero(t, r.Regions[0].Keys[0].LKey)
	mrs := 0
	for _, o := range r.Devices[0].Resources {
		if o.Kind == verbs.KindMR {
			mrs++
		}
	}
	require.Equal(t, 2, mrs)
	b.Release()
	do(t, h, "POST", "/x?trace=0", 200)
	require.False(t, a.Tracing())

	do(t, h, "GET", "/x?format=xml", 400)
	do(t, h, "POST", "/x", 400)
	do(t, h, "PUT", "/x", 405)
	require.NoError(t, a.Close(ctx))
	require.NoError(t, pd.Close())
	require.NoError(t, dev.Close())
}
