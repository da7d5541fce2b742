package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/barque/barque/cluster-test/figure"
)

const (
	// pageSize is the number of objects of a page: client-go's default.
	pageSize = 500
	// lostPages is how many pages in a row fail before it is given up.
	lostPages = 20
)

// makePods makes the pods that are listed, and the ConfigMaps that are updated.
func makePods(ctx context.Context, o options, l *load) (figures []figure.Figure, err error) {
	if err := errors.Join(l.lay(ctx, configMaps, laid, objects), l.makeAccount(ctx)); err != nil {
		return nil, err
	}
	began := time.Now()
	if l.pods, err = l.createPods(ctx, o.pods, func(int) string { return "" }); err != nil {
		return nil, err
	}
	figures = append(figures,
		figure.One("pods created in a second", "", float64(len(l.pods))/time.Since(began).Seconds()))
	w, err := l.weigh(ctx, o.rest)
	return append(figures, w.figures(fmt.Sprintf("%d pods", len(l.pods)))...), err
}

// listPages lists all pods in pages, again and again, while others update ConfigMaps, and compares
// the writes with those without lists.
func listPages(ctx context.Context, o options, l *load) ([]figure.Figure, error) {
	c := testCase{"update", configMaps, inProtobuf, mostClient}
	update := func(ctx context.Context, client int) error {
		_, err := l.request(ctx, c, client)
		return err
	}
	progress("writing for %v, while nobody lists", o.watched)
	alone, err := l.paced(ctx, o.rate, o.watched, update) // brief: how long is measured
	if err != nil {
		return nil, err
	}
	progress("writing for %v, while pages are listed", o.watched)
	listing, stop := context.WithCancel(ctx)
	defer stop()
	type outcome struct {
		pages
		err error
	}
	listed := make(chan outcome, 1)
	go func() { // ends with its context
		p, err := l.listAll(listing)
		listed <- outcome{p, err}
	}()
	beside, err := l.paced(ctx, o.rate, o.watched, update) // brief: how long is measured
	stop()
	p := <-listed
	if err := errors.Join(err, p.err); err != nil {
		return nil, err
	}
	if len(alone.took) == 0 || len(beside.took) == 0 {
		return nil, errors.New("no write was begun")
	}
	figures := append(alone.figures("while nobody lists"), beside.figures("while pages are listed")...)
	figures = append(figures,
		figure.Spread("p99 of the writes while pages are listed, to that while nobody lists", "",
			p99(beside)/p99(alone)))
	figures = append(figures,
		spreads(figure.Percentiles(fmt.Sprintf("a page of %d of %d pods", pageSize, len(l.pods)), "ms", p.took))...)
	figures = append(figures,
		figure.Spread("pages in a second", "", float64(len(p.took))/beside.lasted.Seconds()),
		figure.Spread("lists that came to their end", "", float64(p.whole)),
		figure.Spread("lists begun anew, because the continue token had expired", "", float64(p.expired)))
	return append(figures, p.failures.figures("pages")...), nil
}

func p99(w writes) float64 { return figure.Percentiles("", "ms", w.took)[1].Values[0] }

// pages are those that were read.
type pages struct {
	took    []time.Duration
	whole   int // lists of which each page was read
	expired int
	failures
}

// listAll reads pages until the context ends. After a failure it begins a new list.
func (l *load) listAll(ctx context.Context) (p pages, err error) {
	next, lost := "", 0
	for {
		began := time.Now()
		token, err := l.page(ctx, next)
		if ctx.Err() != nil {
			return p, nil
		}
		var r refusal
		switch next = token; {
		case err == nil:
			if p.took, lost = append(p.took, time.Since(began)), 0; next == "" {
				p.whole++
			}
			continue
		case errors.As(err, &r) && r.code == http.StatusGone:
			p.expired++
		default:
			p.note(err)
		}
		progress("a page failed: %v", err)
		if next, lost = "", lost+1; lost == lostPages {
			return p, fmt.Errorf("%d pages in a row failed: %w", lost, err)
		}
	}
}

// page reads a page of pods, the first one or the one that a token stands for, and returns the
// token of the next one. It decodes no pod.
func (l *load) page(ctx context.Context, token string) (next string, err error) {
	path := fmt.Sprintf("%s?limit=%d&continue=%s", podsPath, pageSize, url.QueryEscape(token))
	res, err := l.clients[0].send(ctx, http.MethodGet, path, inJSON.media, nil)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	body := bufio.NewReader(res.Body)
	if next, err = continueOf(body); err == nil {
		_, err = io.Copy(io.Discard, body)
	}
	return next, err
}

// continueOf reads a list in JSON up to its metadata, which stand before the items.
func continueOf(list io.Reader) (string, error) {
	d := json.NewDecoder(list)
	for key := ""; ; {
		t, err := d.Token()
		if err != nil {
			return "", fmt.Errorf("a list without metadata: %w", err)
		}
		if key == "metadata" && t == json.Delim('{') {
			break
		}
		key, _ = t.(string)
	}
	token := ""
	for d.More() {
		key, err := d.Token()
		var value any
		if err = cmp.Or(err, d.Decode(&value)); err != nil {
			return "", fmt.Errorf("metadata of a list: %w", err)
		}
		if key == "continue" {
			token, _ = value.(string)
		}
	}
	return token, nil
}
