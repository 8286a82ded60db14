package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

func TestMain(m *testing.M) { verbstest.Main(m) }

// Client and server of our own, on the device that the environment names: rounds of every size, checked.
func TestRoundTrips(t *testing.T) {
	for _, size := range []int{minSize, 65, 1000, 4096, maxSize} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c := config{device: "iwarp", count: 5, size: size, validate: true}
		if d := env.Device(); d != "" {
			c.device, c.local = d, env.Addr()
		}
		server, client := c, c
		addr := make(chan string, 1)
		var heard, came bytes.Buffer
		server.server, server.addr, server.listens, server.verbose = true, env.ListenAddr(), func(a string) { addr <- a }, &heard
		served := make(chan error, 1)
		go func() { served <- run(ctx, server) }() // ends with the client
		select {
		case client.addr = <-addr:
		case err := <-served:
			require.NoError(t, err)
		}
		client.verbose = &came
		require.NoError(t, run(ctx, client))
		require.NoError(t, <-served)
		require.Equal(t, 5, bytes.Count(heard.Bytes(), []byte("server ping data: rdma-ping-")))
		require.Contains(t, came.String(), "ping data: rdma-ping-4: ")
	}
}

// A client that wants more than the server has room for is told so by the end of the connection.
func TestServerTooSmall(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	addr := make(chan string, 1)
	served := make(chan error, 1)
	go func() { // ends with the client
		served <- run(ctx, config{device: "iwarp", server: true, addr: "127.0.0.1:0", size: 64, listens: func(a string) { addr <- a }})
	}()
	require.Error(t, run(ctx, config{device: "iwarp", addr: <-addr, count: 1, size: 65}))
	require.ErrorContains(t, <-served, "use -S")
}
