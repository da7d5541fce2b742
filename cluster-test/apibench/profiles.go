package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/cluster-test/sides"
)

// profile measures cases on Barque's servers alone, and writes a CPU profile of each server under
// each case into a directory, as "update-protobuf-64.s1.pprof".
func profile(ctx context.Context, o options, cases []testCase) (err error) {
	if err := os.MkdirAll(o.profiles, 0o755); err != nil {
		return err
	}
	progress("starting three servers of Barque")
	side, err := sides.Barque(ctx)
	if err != nil {
		return fmt.Errorf("start Barque: %w", err)
	}
	defer func() { err = errors.Join(err, side.Stop()) }()
	l, err := newLoad(ctx, side)
	if err == nil {
		err = l.layFor(ctx, cases, o)
	}
	if err != nil {
		return fmt.Errorf("laying objects on Barque: %w", err)
	}
	fmt.Println("\n| case | a second, p50 | CPU s for 1,000 of servers + clients |\n|---|---|---|")
	for _, c := range cases {
		s, err := l.profile(ctx, c, o)
		if err != nil {
			return err
		}
		fmt.Printf("| %s | %s | %s |\n", c, rates([]sample{s}), costs([]sample{s}))
	}
	return nil
}

// profile measures a case once, while each server takes its profile.
func (l *load) profile(ctx context.Context, c testCase, o options) (sample, error) {
	// The first second makes the connections, and fills the caches.
	if _, err := l.measure(ctx, c, time.Second); err != nil { // brief: how long it runs, not a bound
		return sample{}, err
	}
	failures := make([]error, len(l.Servers))
	var taking sync.WaitGroup
	for i, e := range l.Servers {
		taking.Go(func() {
			name := fmt.Sprintf("%s.s%d.pprof", strings.ReplaceAll(c.String(), " ", "-"), i+1)
			failures[i] = saveProfile(ctx, connection{e.Client(), e.URL}, o.each, filepath.Join(o.profiles, name))
		})
	}
	s, err := l.measure(ctx, c, o.each) // brief: how long it is measured, not a bound
	taking.Wait()
	return s, errors.Join(append(failures, err)...)
}

// saveProfile writes a server's CPU profile of so long a time into a file.
func saveProfile(ctx context.Context, c connection, during time.Duration, file string) error {
	path := fmt.Sprintf("/debug/pprof/profile?seconds=%d", max(1, int(during.Seconds())))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+path, nil)
	if err != nil {
		return err
	}
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %.300s", path, res.Status, data)
	}
	return os.WriteFile(file, data, 0o644)
}
