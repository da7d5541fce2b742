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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// writers is how many clients update objects while others watch.
const writers = 4

// opening is how many watches are opened at a time.
const opening = 16

// watching is the open watches of a side.
type watching struct {
	events atomic.Int64 // of all of them together
	ended  atomic.Int64 // watches that the server has ended
	all    sync.WaitGroup
	end    context.CancelFunc
	own    []connection // that were made for them
}

// watch opens as many watches as the case has clients. The first have the connections of the
// load's clients, and each further one has a connection of its own.
func (l *load) watch(ctx context.Context, c testCase, version string) (*watching, error) {
	ctx, end := context.WithCancel(ctx)
	w := &watching{end: end}
	for i := mostClient; i < c.clients; i++ {
		w.own = append(w.own, l.connect(i))
	}
	clients := slices.Concat(l.clients[:], w.own)
	path := pathTo(laid, "") + "?watch=true&resourceVersion=" + version
	failures := make([]error, opening)
	var opened sync.WaitGroup
	for first := range opening {
		opened.Go(func() {
			for i := first; i < c.clients && failures[first] == nil; i += opening {
				failures[first] = w.open(ctx, clients[i], path, c.encoding)
			}
		})
	}
	opened.Wait()
	if err := errors.Join(failures...); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// open opens one watch. It ends with the context, which ends the answer.
func (w *watching) open(ctx context.Context, client connection, path string, e encoding) error {
	res, err := client.send(ctx, http.MethodGet, path, e.media+";stream=watch", nil)
	if err != nil {
		return err
	}
	w.all.Go(func() {
		defer res.Body.Close()
		_ = e.count(res.Body, &w.events) // it ends with an error, whoever ends it
		if ctx.Err() == nil {
			w.ended.Add(1)
		}
	})
	return nil
}

func (w *watching) close() {
	w.end()
	w.all.Wait()
	for _, c := range w.own {
		c.CloseIdleConnections()
	}
}

// measureWatch opens watches and counts what they get while others write as fast as they can. A
// server ends watches that do not take their events in time; those count as failed.
func (l *load) measureWatch(ctx context.Context, c testCase, each time.Duration) (sample, error) {
	version, err := l.version(ctx)
	if err != nil {
		return sample{}, err
	}
	w, err := l.watch(ctx, c, version)
	if err != nil {
		return sample{}, err
	}
	defer w.close()
	before, err := l.Use()
	if err != nil {
		return sample{}, err
	}
	began, first := time.Now(), w.events.Load()
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
	n, lasted := int(w.events.Load()-first), time.Since(began)
	after, err := l.Use()
	if err != nil {
		return sample{}, err
	}
	if n == 0 || int(w.ended.Load()) == c.clients {
		return sample{}, fmt.Errorf("%s on %s: %d events came; %d watches have ended, %d updates failed", c, l.Name, n, w.ended.Load(), failed.Load())
	}
	return sample{
		perSecond: float64(n) / lasted.Seconds(), cpu: perThousand(after.CPU-before.CPU, n),
		failed: int(failed.Load() + w.ended.Load()),
	}, ctx.Err()
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
	in := bufio.NewReaderSize(body, 16<<10)
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
