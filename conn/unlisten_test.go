package conn

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// Who dials an address that is no longer listened on is refused; the others, and
// what is connected, live on.
func TestUnlisten(t *testing.T) {
	b, a := newNode(t, nodeConfig{}), newNode(t, nodeConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	first, err := b.ListenOn(ctx, env.ListenAddr())
	require.NoError(t, err)
	second, err := b.ListenOn(ctx, env.ListenAddr())
	require.NoError(t, err)
	require.Equal(t, []string{first.String(), second.String()}, []string{b.Addrs()[0].String(), b.Addrs()[1].String()})
	c, err := a.Dial(ctx, first.String())
	require.NoError(t, err)

	require.NoError(t, b.Unlisten(first))
	require.ErrorIs(t, b.Unlisten(first), verbs.ErrInvalid)
	require.Len(t, b.Addrs(), 1)
	_, err = a.Dial(ctx, first.String())
	require.ErrorIs(t, err, ErrRefused)
	require.NoError(t, c.Send(ctx, Message{Head: []byte("still here")}))
	require.Equal(t, "still here", (<-b.messages).head)
	_, err = a.Dial(ctx, second.String())
	require.NoError(t, err)

	_, err = b.ListenOn(ctx, first.String()) // it can be had again
	require.NoError(t, err)
	_, err = a.Dial(ctx, first.String())
	require.NoError(t, err)
}
