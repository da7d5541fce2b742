package clustertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// rotationWork is the state that the clients of the rotations share.
type rotationWork struct {
	without         atomic.Bool // only two servers are left
	writes, reads   atomic.Int64
	last            atomic.Int64 // acknowledgement, in nanoseconds
	gap, gapWithout atomic.Int64

	mu       sync.Mutex
	failures []string
}

func (w *rotationWork) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.failures) < 20 {
		w.failures = append(w.failures, fmt.Sprintf(format, args...))
	}
}

// acknowledged notes a write.
func (w *rotationWork) acknowledged(without bool) {
	w.writes.Add(1)
	now := time.Now().UnixNano()
	passed := now - w.last.Swap(now)
	longest := &w.gap
	if without || w.without.Load() {
		longest = &w.gapWithout
	}
	for {
		is := longest.Load()
		if passed <= is || longest.CompareAndSwap(is, passed) {
			return
		}
	}
}

// register is a Secret that one client writes: a number that grows with each attempt.
type register struct {
	name string

	mu    sync.Mutex
	floor int // the newest that was acknowledged or read; 0: none
	tried int
}

func (g *register) value(n int) string { return fmt.Sprintf("%s in write %d", secretMark, n) }

// begun returns the least value that a read that begins now must show.
func (g *register) begun() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.floor
}

// judge returns why a read is wrong that began when the floor was that one.
func (g *register) judge(s *corev1.Secret, err error, floor int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if apierrors.IsNotFound(err) {
		if floor > 0 {
			return fmt.Errorf("%s is not there, and was acknowledged in write %d", g.name, floor)
		}
		return nil
	}
	if err != nil {
		return nil // nothing was read
	}
	n := 0
	if _, err := fmt.Sscanf(string(s.Data["v"]), secretMark+" in write %d", &n); err != nil ||
		g.value(n) != string(s.Data["v"]) || n > g.tried {
		return fmt.Errorf("%s is %q, which nobody wrote (%w)", g.name, s.Data["v"], err)
	}
	if n < floor {
		return fmt.Errorf("%s is as in write %d, and write %d was acknowledged or read before", g.name, n, floor)
	}
	g.floor = max(g.floor, n)
	return nil
}

func (g *register) try() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tried++
	return g.tried
}

func (g *register) acknowledge(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.floor = max(g.floor, n)
}

// work starts the clients. finish ends them, and judges the final state of all servers.
func (r *rotations) work() (finish func()) {
	r.Helper()
	const writers, each = 5, 6
	ctx, stop := context.WithCancel(r.Context())
	var working sync.WaitGroup
	r.Cleanup(func() { stop(); working.Wait() })
	for i := range writers * each {
		r.registers = append(r.registers, &register{name: fmt.Sprintf("w-%d", i)})
	}
	r.clients.last.Store(time.Now().UnixNano())
	run := func(n int, client func(ctx context.Context, m *FailoverClient, i int)) {
		for i := range n {
			m, err := r.NewFailoverClient(r.voters, i, 5*time.Second)
			if err != nil {
				r.Fatal(err)
			}
			working.Go(func() {
				defer m.Close()
				client(ctx, m, i)
			})
		}
	}
	run(writers, func(ctx context.Context, m *FailoverClient, i int) {
		for n := 0; ctx.Err() == nil; n++ {
			r.write(ctx, m, r.registers[i*each+n%each])
			breathe(ctx)
		}
	})
	run(len(r.voters), func(ctx context.Context, m *FailoverClient, i int) {
		random := rand.New(rand.NewPCG(rand.Uint64(), 2))
		for ctx.Err() == nil {
			r.read(ctx, m, r.registers[random.IntN(len(r.registers))])
			r.readRotated(ctx, m, random.IntN(*rotationSecrets))
			breathe(ctx)
		}
	})
	return func() {
		r.Helper()
		stop()
		working.Wait()
		for server, by := range r.direct {
			for _, g := range r.registers {
				floor := g.begun()
				s, err := by.CoreV1().Secrets(r.Namespace).Get(r.Context(), g.name, metav1.GetOptions{})
				if err := errors.Join(g.judge(s, err, floor), err); err != nil {
					r.clients.fail("%s at the end: %v", server, err)
				}
			}
		}
		for _, f := range r.clients.failures {
			r.Error(f)
		}
		if r.clients.writes.Load() < 100 || r.clients.reads.Load() < 100 {
			r.Error("there was too little work for a judgement")
		}
	}
}

// write reads a register, and writes its next number if it is as it was read.
func (r *rotations) write(ctx context.Context, m *FailoverClient, g *register) {
	var is *corev1.Secret
	floor := g.begun()
	without := r.clients.without.Load()
	read := m.Kube(ctx, func(ctx context.Context, c kubernetes.Interface) (err error) {
		is, err = c.CoreV1().Secrets(r.Namespace).Get(ctx, g.name, metav1.GetOptions{})
		return err
	})
	if err := g.judge(is, read, floor); err != nil {
		r.clients.fail("%v", err)
	}
	absent := apierrors.IsNotFound(read)
	if read != nil && !absent {
		return
	}
	n := g.try()
	err := m.Kube(ctx, func(ctx context.Context, c kubernetes.Interface) (err error) {
		if absent {
			_, err = c.CoreV1().Secrets(r.Namespace).Create(ctx,
				&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: g.name},
					Data: map[string][]byte{"v": []byte(g.value(n))}}, metav1.CreateOptions{})
			return err
		}
		is.Data["v"] = []byte(g.value(n))
		_, err = c.CoreV1().Secrets(r.Namespace).Update(ctx, is, metav1.UpdateOptions{})
		return err
	})
	if err == nil {
		g.acknowledge(n)
		r.clients.acknowledged(without)
	}
}

func (r *rotations) read(ctx context.Context, m *FailoverClient, g *register) {
	floor := g.begun()
	var is *corev1.Secret
	err := m.Kube(ctx, func(ctx context.Context, c kubernetes.Interface) (err error) {
		is, err = c.CoreV1().Secrets(r.Namespace).Get(ctx, g.name, metav1.GetOptions{})
		return err
	})
	if wrong := g.judge(is, err, floor); wrong != nil {
		r.clients.fail("%v", wrong)
	} else if err == nil {
		r.clients.reads.Add(1)
	}
}

// readRotated reads a Secret that no client writes.
func (r *rotations) readRotated(ctx context.Context, m *FailoverClient, i int) {
	var is *corev1.Secret
	err := m.Kube(ctx, func(ctx context.Context, c kubernetes.Interface) (err error) {
		is, err = c.CoreV1().Secrets(r.Namespace).Get(ctx, rotatedName(i), metav1.GetOptions{})
		return err
	})
	switch {
	case apierrors.IsNotFound(err), err == nil && string(is.Data["v"]) != rotatedValue(i):
		r.clients.fail("Secret %d is %+v: %v", i, is, err)
	case err == nil:
		r.clients.reads.Add(1)
	}
}
