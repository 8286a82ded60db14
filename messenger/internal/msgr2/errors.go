package msgr2

import (
	"errors"
	"fmt"
)

// What can be wrong with bytes that a peer sent. Every decode error wraps
// exactly one of them.
var (
	ErrTruncated = errors.New("msgr2: truncated")
	ErrMalformed = errors.New("msgr2: malformed")
	ErrTooLarge  = errors.New("msgr2: larger than the limit")
	ErrChecksum  = errors.New("msgr2: checksum mismatch")
	// ErrForged is a sealed record that does not open: changed, cut, repeated,
	// out of order, or sealed with another key.
	ErrForged = errors.New("msgr2: forged record")
	// ErrNonces: a direction has sealed as many records as its nonce counts.
	ErrNonces = errors.New("msgr2: out of nonces")
	// ErrAborted is a frame that its sender gave up while sending it: well
	// formed, to be dropped, and not a reason to close the connection.
	ErrAborted = errors.New("msgr2: frame aborted by its sender")
)

// DecodeError says where decoding failed. Part is the banner, the preamble, a
// segment, the epilogue or the name of a frame.
type DecodeError struct {
	Part   string
	Detail string
	Err    error
}

func (e *DecodeError) Error() string {
	if e.Detail == "" {
		return fmt.Sprintf("%v in %s", e.Err, e.Part)
	}
	return fmt.Sprintf("%v in %s: %s", e.Err, e.Part, e.Detail)
}

func (e *DecodeError) Unwrap() error { return e.Err }

func decodeErr(part string, err error, format string, args ...any) error {
	return &DecodeError{Part: part, Err: err, Detail: fmt.Sprintf(format, args...)}
}
