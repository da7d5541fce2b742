// Package service declares services, and the endpoints objects behind them: their defaults,
// validation and printing, and the fields that an update may change.
//
// It checks the form of addresses and ports. Package apiserver/services gives them. It is pure.
package service
