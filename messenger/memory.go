package messenger

import (
	"fmt"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// NewRegCache makes a cache of registrations for memory that the caller owns
// (mapped files, memfds, hugetlbfs: see buffer.RegCache) on all transports: the
// Data of messages, and what is granted, pulled and pushed, may be lists of such
// memory, which are sent from where they are. cfg.PDs gets those of the
// transports. The memory stays the caller's, who closes the buffer.Memory before
// it is unmapped: Close waits for the messages that have lists of it, lossless
// ones until the peer has acknowledged them. A mapped file must not be cut
// meanwhile: where this process reads the payload itself (checksums, secure mode) it
// gets SIGBUS, as by any access; on a stream without either the message is given up
// with ErrUnreadable, and a device in software ends its connection. Shutdown and Close of the messenger
// end the registrations that are left. Errors: those of buffer.NewRegCache.
func (m *Messenger) NewRegCache(cfg buffer.RegCacheConfig) (*buffer.RegCache, error) {
	for _, ep := range m.endpoints {
		cfg.PDs = append(cfg.PDs, ep.PD())
	}
	c, err := buffer.NewRegCache(cfg)
	if err != nil {
		return nil, fmt.Errorf("messenger: %w", err)
	}
	for _, ep := range m.endpoints {
		ep.Share(c)
	}
	return c, nil
}

// writable refuses a list with memory that its owner has registered for reading
// only, and may have mapped so.
func writable(l *buffer.List) error {
	for i := range l.Segments() {
		if !l.At(i).Writable() {
			return fmt.Errorf("%w: memory that is registered for reading only", ErrInvalid)
		}
	}
	return nil
}

// ours reports whether every buffer of l can be sent by each of our transports.
// Streams take any memory.
func (m *Messenger) ours(l *buffer.List) bool {
	for i := range l.Segments() {
		b := l.At(i)
		if b.Arena() == m.cfg.Arena {
			continue
		}
		for _, ep := range m.endpoints {
			if _, ok := b.Rights(ep.PD()); !ok {
				return false
			}
		}
	}
	return true
}
