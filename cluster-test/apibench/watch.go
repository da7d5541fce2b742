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

// measureWatch opens watches and counts their events while others write as fast as they can. A
// server ends watches that do not take their events in time; those count as failed.
func (l *load) measureWatch(ctx context.Context, c testCase, each time.Duration) (sample, error) {
	version, err := l.version(ctx, c.kind.path(laid, ""))
	if err != nil {
		return sample{}, err
	}
	path := c.kind.path(laid, "") + "?watch=true&resourceVersion=" + version
	w, err := l.watch(order{Watches: c.clients, Encoding: c.encoding.name, Paths: []string{path}})
	if err != nil {
		return sample{}, err
	}
	defer w.close()
	before, err := l.use(w)
	if err != nil {
		return sample{}, err
	}
	first, err := w.count()
	if err != nil {
		return sample{}, err
	}
	began := time.Now()
	var writing sync.WaitGroup
	var failed atomic.Int64
	update := testCase{operation: "update", kind: c.kind, encoding: c.kind.encodings[0]}
	for i := range writers {
		writing.Go(func() {
			for time.Since(began) < each && ctx.Err() == nil {
				if _, err := l.request(ctx, update, i); err != nil {
					failed.Add(1)
				}
			}
		})
	}
	writing.Wait()
	lasted := time.Since(began)
	last, err := w.count()
	if err != nil {
		return sample{}, err
	}
	used, err := l.since(before, w)
	if err != nil {
		return sample{}, err
	}
	n := int(last.Events - first.Events)
	if n == 0 || last.Ended == c.clients {
		return sample{},
			fmt.Errorf("%s on %s: %d events came; %d watches have ended, %d updates failed", c, l.Name, n, last.Ended,
				failed.Load())
	}
	s := sample{perSecond: float64(n) / lasted.Seconds(), failed: int(failed.Load()) + last.Ended}
	s.cpu, s.clients = used.perThousand(n)
	s.writes = float64(used.writes) / float64(n)
	return s, ctx.Err()
}

// version returns the newest resourceVersion of the listed objects.
func (l *load) version(ctx context.Context, path string) (string, error) {
	res, err := l.clients[0].send(ctx, http.MethodGet, path+"?limit=1", inJSON.media, nil)
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
		if e.name == inJSON.name {
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
