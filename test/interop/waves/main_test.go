package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/argonaut-rdma/argonaut/test/env"
)

const clientEnv = "ARGONAUT_WAVES_CLIENT"

// The test binary is its own client.
func TestMain(m *testing.M) {
	if os.Getenv(clientEnv) == "" {
		goleak.VerifyTestMain(m,
			// The default pool of ants, which package buffer imports, lives as long as the process.
			goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
			goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"))
	}
	flag.CommandLine = flag.NewFlagSet(os.Args[0], flag.ExitOnError)
	main()
}

// Waves of connections, some of them killed: nothing is left.
func TestWaves(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	t.Setenv(clientEnv, "1")
	o := &options{device: "iwarp", addr: env.Addr(), n: 60, processes: 3, conns: 10, seed: uint64(time.Now().UnixNano()), self: []string{exe}}
	if d := env.Device(); d != "" {
		o.device = d
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	require.NoError(t, waves(ctx, o, func(s string) { t.Log(s) }))
}

// What a client says makes its wave fail.
func TestClientThatFails(t *testing.T) {
	o := &options{device: "iwarp", addr: "127.0.0.1", n: 1, processes: 1, conns: 1, seed: 1, self: []string{"/bin/sh", "-c", "echo because; exit 3", "sh"}}
	err := waves(t.Context(), o, func(string) {})
	require.ErrorContains(t, err, fmt.Sprint("exit status 3", ": because"))
}
