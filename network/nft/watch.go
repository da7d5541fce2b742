package nft

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// checkEvery is the interval at which Watch checks that the tables exist: a notification may be
// missed.
const checkEvery = 20 * time.Second

// Watch calls changed with the name of a table that another program has changed, or that is
// missing, until ctx ends. An owner writes its table again. The call may be unnecessary. changed
// must not block. The caller's thread decides the network namespace.
func (w *Writer) Watch(ctx context.Context, logger *slog.Logger, tables []Name, changed func(table Name)) {
	for ctx.Err() == nil {
		err := w.watchOnce(ctx, tables, changed)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) { // the kernel had more to tell than the socket holds
			logger.Warn("network: cannot watch nftables, looking at intervals", "err", err)
			pause(ctx, checkEvery)
		}
		w.check(tables, changed)
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// check reports the tables that are not there.
func (w *Writer) check(tables []Name, changed func(Name)) {
	there, err := w.Tables()
	if err != nil {
		return // the owners' own writes report it
	}
	for _, table := range tables {
		if !slices.Contains(there, table) {
			changed(table)
		}
	}
}

// watchOnce returns when ctx ends, with an error when its socket fails, or when it is time to
// check.
func (w *Writer) watchOnce(ctx context.Context, tables []Name, changed func(Name)) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) }) // ends Receive
	defer stop()
	if err := errors.Join(conn.SetReadBuffer(socketBuffer), conn.JoinGroup(unix.NFNLGRP_NFTABLES)); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := conn.SetReadDeadline(time.Now().Add(checkEvery)); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil // the deadline above may have overwritten the one that ends this
		}
		messages, err := conn.Receive()
		var timeout interface{ Timeout() bool }
		if errors.As(err, &timeout) && timeout.Timeout() {
			w.check(tables, changed)
			continue
		}
		if err != nil {
			return err
		}
		for _, message := range messages {
			if w.own(message.Header.PID) {
				continue
			}
			if table := tableOf(message); slices.Contains(tables, table) {
				changed(table)
			}
		}
	}
	return nil
}

// tableOf returns the name of a notification's table; the zero value for none.
func tableOf(message netlink.Message) Name {
	const header = 4 // family, version, resource
	if message.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || message.Header.Type&0xff == unix.NFT_MSG_NEWGEN ||
		len(message.Data) < header {
		return Name{}
	}
	family := IPv4
	switch message.Data[0] {
	case IPv4.Number():
	case IPv6.Number():
		family = IPv6
	default:
		return Name{}
	}
	attributes, err := netlink.NewAttributeDecoder(message.Data[header:])
	if err != nil {
		return Name{}
	}
	for attributes.Next() {
		// The name of the table has the same number in tables, chains, rules, sets and elements.
		if attributes.Type() == unix.NFTA_TABLE_NAME {
			return Name{family, string(bytes.TrimRight(attributes.Bytes(), "\x00"))}
		}
	}
	return Name{}
}
