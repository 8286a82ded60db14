// Package buffertest finds leaked buffers in users' own tests.
//
//	arena := buffertest.New(t, buffer.Config{Budget: 16 << 20})
//
// makes an arena that traces, and is closed when the test ends, which fails if a
// buffer, a grant or a registration is left: with who took it, where.
package buffertest
