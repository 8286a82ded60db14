package messenger

// budget is what a message holds of the throttles.
type budget struct{}

func (b *budget) release() {}
