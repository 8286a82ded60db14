// Package wire encodes and decodes what two endpoints say to each other: the
// private data of the handshake, and packets, each the content of one SEND. See
// PROTOCOL.md of package conn. Decoders take any bytes: they return errors that
// match ErrProtocol, never panic, and keep references to nothing.
package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/argonaut-rdma/argonaut/verbs"
)

var le = binary.LittleEndian

func bad(format string, a ...any) error {
	return fmt.Errorf("%w: %s", verbs.ErrProtocol, fmt.Sprintf(format, a...))
}
