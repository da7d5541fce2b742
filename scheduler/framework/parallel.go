package framework

import "sync"

// minChunk is the least number of pieces worth a goroutine of its own.
const minChunk = 32

// Parallel splits work over a fixed number of goroutines and waits for all of them.
type Parallel int

// Each calls fn with 0 to n-1, in unordered chunks. It returns when all calls have.
func (p Parallel) Each(n int, fn func(i int)) {
	workers := min(int(p), n/minChunk)
	if workers < 2 {
		for i := range n {
			fn(i)
		}
		return
	}
	var wg sync.WaitGroup
	for w := range workers {
		from, to := n*w/workers, n*(w+1)/workers
		wg.Go(func() {
			for i := from; i < to; i++ {
				fn(i)
			}
		})
	}
	wg.Wait()
}
