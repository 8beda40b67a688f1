// A layered layout in time proportional to its boxes and edges: ranks by longest paths, an order in each rank by the means
// of neighbours, and places near these (Sugiyama, Tagawa and Toda, 1981). Edges of several ranks pass through points.
"use strict";

const LAYERED = { sweeps: 6, rounds: 8, across: 16, down: 24, point: 8 };

// Gives each box its x and y (of its left upper corner), each pair [from, to] its points, and the size of all.
function layered(boxes, pairs, ranks) {
  const nodes = new Map(boxes.map((box) => [box, { box, width: box.width, height: box.height, rank: ranks.get(box) ?? 0, up: [], down: [] }]));
  const layers = [];
  const put = (node) => { (layers[node.rank] ??= []).push(node); };
  for (const node of nodes.values()) put(node);
  for (let rank = 0; rank < layers.length; rank += 1) layers[rank] ??= [];
  const ways = new Map();
  for (const pair of pairs) {
    const [from, to] = [nodes.get(pair[0]), nodes.get(pair[1])];
    const way = [from];
    for (let rank = from.rank + 1; rank < to.rank; rank += 1) {
      const point = { width: LAYERED.point, height: 0, rank, up: [], down: [] };
      put(point);
      way.push(point);
    }
    way.push(to);
    for (let k = 1; k < way.length; k += 1) { way[k - 1].down.push(way[k]); way[k].up.push(way[k - 1]); }
    ways.set(pair, way);
  }
  orderLayers(layers);
  placeAcross(layers);
  let y = 0;
  for (const layer of layers) {
    const height = Math.max(0, ...layer.map((node) => node.height));
    for (const node of layer) node.y = y + height / 2;
    y += height + LAYERED.down;
  }
  const all = layers.flat();
  const left = Math.min(...all.map((node) => node.x - node.width / 2));
  for (const node of all) node.x -= left;
  for (const { box, x, y: middle } of nodes.values()) { box.x = x - box.width / 2; box.y = middle - box.height / 2; }
  const points = new Map();
  for (const [pair, way] of ways) points.set(pair, pointsOf(way));
  return { points, width: Math.max(...all.map((node) => node.x + node.width / 2)), height: y - LAYERED.down };
}

function pointsOf(way) {
  const [first, last] = [way[0], way.at(-1)];
  const found = [[first.x, first.y + first.height / 2]];
  for (const node of way.slice(1, -1)) found.push([node.x, node.y]);
  found.push([last.x, last.y - last.height / 2]);
  return way.length > 2 ? found : [found[0], [found[0][0], (found[0][1] + found[1][1]) / 2], [found[1][0], (found[0][1] + found[1][1]) / 2], found[1]];
}

// Sort each rank by the mean places of its neighbours above, then of those below, some times.
function orderLayers(layers) {
  const number = (layer) => layer.forEach((node, at) => { node.at = at; });
  layers.forEach(number);
  const sort = (layer, side) => {
    for (const node of layer) node.wish = node[side].length ? node[side].reduce((sum, other) => sum + other.at / Math.max(1, layers[other.rank].length - 1), 0) / node[side].length : node.at / Math.max(1, layer.length - 1);
    layer.sort((a, b) => a.wish - b.wish || a.at - b.at);
    number(layer);
  };
  for (let sweep = 0; sweep < LAYERED.sweeps; sweep += 1) {
    if (sweep % 2) for (let rank = layers.length - 2; rank >= 0; rank -= 1) sort(layers[rank], "down");
    else for (let rank = 1; rank < layers.length; rank += 1) sort(layers[rank], "up");
  }
}

// Centres of the nodes of each rank: as near as their order allows to the means of their neighbours. A node that is too
// near to others is moved half by those at its left, half by those at its right.
function placeAcross(layers) {
  const apart = (a, b) => (a.width + b.width) / 2 + LAYERED.across * (a.box && b.box ? 1 : 0.6);
  for (const layer of layers) {
    let x = 0;
    layer.forEach((node, at) => { x = at ? x + apart(layer[at - 1], node) : 0; node.x = x; });
    for (const node of layer) node.x -= x / 2;
  }
  const settle = (layer, sides) => {
    const wished = layer.map((node) => {
      const near = sides.flatMap((side) => node[side]);
      return near.length ? near.reduce((sum, other) => sum + other.x, 0) / near.length : node.x;
    });
    const right = [...wished];
    for (let k = 1; k < layer.length; k += 1) right[k] = Math.max(wished[k], right[k - 1] + apart(layer[k - 1], layer[k]));
    const left = [...wished];
    for (let k = layer.length - 2; k >= 0; k -= 1) left[k] = Math.min(wished[k], left[k + 1] - apart(layer[k], layer[k + 1]));
    layer.forEach((node, k) => { node.x = (right[k] + left[k]) / 2; });
  };
  for (let round = 0; round < LAYERED.rounds; round += 1) {
    const sides = round < LAYERED.rounds - 2 ? [[round % 2 ? "down" : "up"]] : [["up", "down"]];
    const order = round % 2 ? [...layers].reverse() : layers;
    for (const layer of order) settle(layer, sides[0]);
  }
}
