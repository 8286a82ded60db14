package messenger

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
)

// secureAll runs the whole suite in secure mode: go test ./messenger -args -secure
var secureAll = flag.Bool("secure", false, "all messengers of the tests are in secure mode, if they do not say otherwise")

// sharedKey is a method for tests: who knows the key may be anybody. One round;
// the keys are new each time.
type sharedKey struct{ key string }

const sharedKeyMethod = 0x4000_0002

func (sharedKey) Method() uint32 { return sharedKeyMethod }
func (sharedKey) Keyed() bool    { return true }

func (k sharedKey) hello(i AuthInfo) []byte {
	b := make([]byte, 16, 24)
	rand.Read(b)
	return binary.LittleEndian.AppendUint64(b, uint64(i.Self.Num))
}

func (k sharedKey) result(i AuthInfo, client, server []byte, peer []byte) (AuthResult, error) {
	if len(client) != 24 || len(server) != 24 {
		return AuthResult{}, fmt.Errorf("%w: hello of wrong length", ErrAuth)
	}
	keys, err := hkdf.Key(sha256.New, []byte(k.key), append(append([]byte(nil), client...), server...), "test", 32+64)
	return AuthResult{
		Done: true, Peer: EntityName{i.Peer, int64(binary.LittleEndian.Uint64(peer[16:]))},
		SessionKey: keys[:32], Secret: keys[32:],
	}, err
}

func (k sharedKey) Client(i AuthInfo) AuthStep {
	ours := k.hello(i)
	return func(in []byte, done bool) ([]byte, AuthResult, error) {
		if !done {
			return ours, AuthResult{}, nil
		}
		r, err := k.result(i, ours, in, in)
		return nil, r, err
	}
}

func (k sharedKey) Server(i AuthInfo) AuthStep {
	return func(in []byte, _ bool) ([]byte, AuthResult, error) {
		ours := k.hello(i)
		r, err := k.result(i, in, ours, in)
		return ours, r, err
	}
}

// secured is cfg in secure mode.
func secured(cfg Config) Config {
	cfg.Auth, cfg.Modes = []Auth{sharedKey{"abc"}}, []Mode{ModeSecure}
	return cfg
}
