package wire

import "fmt"

// DecodeError says what in a peer's bytes broke the rules.
type DecodeError struct {
	What  string   // the field or frame, for people
	Value uint64   // the offending value
	Term  TermCode // what RFC 5040 section 4.8 and RFC 5041 section 7 call it
}

func (e *DecodeError) Error() string {
	return fmt.Sprintf("iwarp: %s %#x (%v)", e.What, e.Value, e.Term)
}

func decodeErr(what string, value uint64, term TermCode) error {
	return &DecodeError{What: what, Value: value, Term: term}
}
