package verbstest

import (
	"context"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

type faultyListener struct {
	driver.Listener
	f *Faulty
}

func (l *faultyListener) Accept(ctx context.Context) (driver.ConnRequest, error) {
	if err := l.f.s.enter(CallAcceptRequest); err != nil {
		return nil, err
	}
	r, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return &faultyRequest{r, l.f}, nil
}

func (l *faultyListener) Close() error {
	if err := l.f.s.enter(CallCloseListener); err != nil {
		return err
	}
	return l.Listener.Close()
}

type faultyRequest struct {
	driver.ConnRequest
	f *Faulty
}

func (r *faultyRequest) Accept(ctx context.Context, qp driver.QP, p driver.ConnParam) error {
	inner := qp.(*faultyQP).QP
	if err := r.f.s.enter(CallAccept); err != nil {
		_ = r.ConnRequest.Reject(nil) // an Accept that failed has ended the request,
		_ = inner.SetState(driver.QPStateErr)
		return err
	}
	return r.ConnRequest.Accept(ctx, inner, p)
}

func (r *faultyRequest) Reject(private []byte) error {
	if err := r.f.s.enter(CallReject); err != nil {
		_ = r.ConnRequest.Reject(private) // and so has a Reject
		return err
	}
	return r.ConnRequest.Reject(private)
}
