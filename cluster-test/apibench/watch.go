package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// writers is how many clients update objects while others watch.
const writers = 4

// measureWatch opens as many watches as there are clients and counts what they get while others
// write as fast as they can.
func (l *load) measureWatch(ctx context.Context, c testCase, each time.Duration) (sample, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	version, err := l.version(ctx)
	if err != nil {
		return sample{}, err
	}
	var events atomic.Int64
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	failures := make(chan error, c.clients)
	for i := range c.clients {
		res, err := l.clients[i].send(ctx, http.MethodGet, pathTo(laid, "")+"?watch=true&resourceVersion="+version, c.encoding.media+";stream=watch", nil)
		if err != nil {
			return sample{}, err
		}
		// It ends with ctx, which ends the answer.
		all.Go(func() {
			defer res.Body.Close()
			if err := c.encoding.count(res.Body, &events); ctx.Err() == nil {
				failures <- fmt.Errorf("a watch has ended: %w", err)
			}
		})
	}
	before, err := l.Use()
	if err != nil {
		return sample{}, err
	}
	began, first := time.Now(), events.Load()
	var writing sync.WaitGroup
	var failed atomic.Int64
	update := testCase{operation: "update", encoding: encodings[0]}
	for i := range writers {
		writing.Go(func() {
			for time.Since(began) < each && ctx.Err() == nil {
				if err := l.request(ctx, update, i); err != nil {
					failed.Add(1)
				}
			}
		})
	}
	writing.Wait()
	n, lasted := int(events.Load()-first), time.Since(began)
	after, err := l.Use()
	if err != nil {
		return sample{}, err
	}
	select {
	case err := <-failures:
		return sample{}, fmt.Errorf("%s on %s: %w", c, l.Name, err)
	default:
	}
	if n == 0 {
		return sample{}, fmt.Errorf("%s on %s: no event came; %d updates failed", c, l.Name, failed.Load())
	}
	return sample{perSecond: float64(n) / lasted.Seconds(), cpu: perThousand(after.CPU-before.CPU, n), failed: int(failed.Load())}, ctx.Err()
}

// version returns the newest resourceVersion.
func (l *load) version(ctx context.Context) (string, error) {
	res, err := l.clients[0].send(ctx, http.MethodGet, pathTo(laid, "")+"?limit=1", encodings[1].media, nil)
	if err != nil {
		return "", err
	}
	var list metav1.List
	err = json.NewDecoder(res.Body).Decode(&list)
	return list.ResourceVersion, errors.Join(err, res.Body.Close())
}

// count counts the events of a watch until it ends.
func (e encoding) count(body io.Reader, events *atomic.Int64) error {
	in := bufio.NewReaderSize(body, 64<<10)
	for {
		if e.name == "JSON" {
			switch _, err := in.ReadSlice('\n'); {
			case errors.Is(err, bufio.ErrBufferFull):
				continue
			case err != nil:
				return err
			}
		} else {
			var length [4]byte
			if _, err := io.ReadFull(in, length[:]); err != nil {
				return err
			}
			if _, err := in.Discard(int(binary.BigEndian.Uint32(length[:]))); err != nil {
				return err
			}
		}
		events.Add(1)
	}
}
