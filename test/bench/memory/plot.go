//go:build linux

package main

import (
	"bytes"
	"fmt"
	"math"
)

// plot is a line chart, logarithmic in y, and in x unless the x are few names.
type plot struct {
	title, x, y string
	names       []string // of x = 0, 1, 2 ...
	lines       []line
}

type line struct {
	name   string
	xs, ys []float64
}

func (p *plot) add(name string, x, y float64) {
	for i := range p.lines {
		if p.lines[i].name == name {
			p.lines[i].xs, p.lines[i].ys = append(p.lines[i].xs, x), append(p.lines[i].ys, y)
			return
		}
	}
	p.lines = append(p.lines, line{name, []float64{x}, []float64{y}})
}

var colors = []string{"#1b6ca8", "#c44536", "#3a7d44", "#8e5ea2", "#b8860b", "#444444", "#17a2b8", "#d81b60"}

// svg draws the plot.
func (p *plot) svg() []byte {
	const w, h, left, right, top, bottom = 760, 420, 80, 210, 40, 60
	fx := math.Log10
	if p.names != nil {
		fx = func(x float64) float64 { return x }
	}
	x0, x1, y0, y1 := math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	for _, l := range p.lines {
		for i := range l.xs {
			x, y := fx(l.xs[i]), math.Log10(max(l.ys[i], 1e-3))
			x0, x1, y0, y1 = min(x0, x), max(x1, x), min(y0, y), max(y1, y)
		}
	}
	y0, y1 = math.Floor(y0), math.Ceil(y1)
	if x1 == x0 {
		x1++
	}
	if y1 == y0 {
		y1++
	}
	px := func(x float64) float64 { return left + (fx(x)-x0)/(x1-x0)*(w-left-right) }
	py := func(y float64) float64 { return h - bottom - (math.Log10(max(y, 1e-3))-y0)/(y1-y0)*(h-top-bottom) }
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", w, h)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/><text x="%d" y="22" font-size="15">%s</text>`+"\n", w, h, left, p.title)
	for e := y0; e <= y1; e++ {
		y := py(math.Pow(10, e))
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			left, w-right, y, y, left-8, y+4, short(math.Pow(10, e)))
	}
	if p.names != nil {
		for i, n := range p.names {
			fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", px(float64(i)), h-bottom+18, n)
		}
	} else {
		seen := map[float64]bool{}
		for _, l := range p.lines {
			for _, x := range l.xs {
				if !seen[x] {
					seen[x] = true
					fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", px(x), h-bottom+18, bytesName(int64(x)))
				}
			}
		}
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", left+(w-left-right)/2, h-14, p.x)
	fmt.Fprintf(&b, `<text transform="translate(18 %d) rotate(-90)" text-anchor="middle">%s</text>`+"\n", top+(h-top-bottom)/2, p.y)
	for i, l := range p.lines {
		c := colors[i%len(colors)]
		b.WriteString(`<polyline fill="none" stroke-width="2" stroke="` + c + `" points="`)
		for k := range l.xs {
			fmt.Fprintf(&b, "%.1f,%.1f ", px(l.xs[k]), py(l.ys[k]))
		}
		b.WriteString("\"/>\n")
		for k := range l.xs {
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, px(l.xs[k]), py(l.ys[k]), c)
		}
		y := top + 16*i
		fmt.Fprintf(&b, "\n"+`<rect x="%d" y="%d" width="12" height="4" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n", w-right+12, y, c, w-right+30, y+6, l.name)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func short(v float64) string { return fmt.Sprintf("%g", v) }

func bytesName(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
