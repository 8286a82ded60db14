package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

// host is what either end stands on: a device, and memory.
type host struct {
	dev   *verbs.Device
	arena *buffer.Arena
}

func newHost(crc iwarp.CRCPolicy) (*host, error) {
	dev, err := iwarp.Open(iwarp.Config{CRC: crc})
	if err != nil {
		return nil, err
	}
	arena, err := buffer.New(buffer.Config{Budget: 128 * mib, Prefault: true})
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return &host{dev, arena}, nil
}

// close runs shutdown, which may be nil, before it closes the rest, and reports
// whatever was not given back.
func (h *host) close(shutdown func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var errs []error
	if shutdown != nil {
		errs = append(errs, shutdown(ctx))
	}
	if acc := h.arena.Account(); acc.Posted != 0 || acc.Held != 0 {
		errs = append(errs, fmt.Errorf("buffers left: %+v", acc))
	}
	return errors.Join(append(errs, h.arena.Close(ctx), h.dev.Close())...)
}
